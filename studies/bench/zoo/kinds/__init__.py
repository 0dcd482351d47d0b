"""The kinds of checkpoints, one file each: `USES`, kinds needed first, and `make`, the recipe."""
