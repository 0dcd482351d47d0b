"""Tiny trained models with drafters of several kinds, made here in minutes on one core.

`checkpoints()` gives the folders; they are made once and kept under `.zoo`. A target learns short
counting stories, so that its drafters agree with it often at first and less with every position,
each kind in its own way. Everything is seeded and trained for a fixed number of steps.
"""
