"""The machine that an engine runs on: GPUs, processor, what is installed, known faults."""
