"""A smaller language model that drafts for the target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zoo.saving import qwen3
from zoo.training import train_language_model

STEPS = 500


def make(folder: Path, used: Mapping[str, Path]) -> None:
    model = qwen3(hidden=64, heads=2, layers=1)
    train_language_model(model, STEPS, seed=10)
    model.save_pretrained(folder)
