"""The kinds of checkpoints, one file each; `used` of `make` are the folders of kinds it uses."""
