"""One file a schema revision; never change one that was released."""
