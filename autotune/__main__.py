"""`python -m autotune` is `spectune`."""

from autotune.cli import main

main()
