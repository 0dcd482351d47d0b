"""Tiny trained models with a drafter of every kind that runs on a CPU, made here in minutes.

`checkpoint(kind)` gives a folder; it is made once and kept under `.zoo`. Targets learn short
counting stories, so that their drafters agree with them often at first and less with every
position, each kind in its own way. Everything is seeded and trained for a fixed number of steps.
"""
