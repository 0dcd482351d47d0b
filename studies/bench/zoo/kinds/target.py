"""The target of most drafters: a Qwen3 of a million parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zoo.layers import Shape
from zoo.saving import LAYERS, qwen3
from zoo.training import train_language_model

STEPS = 350


def make(folder: Path, used: Mapping[str, Path]) -> None:
    shape = Shape()
    model = qwen3(shape.hidden, shape.heads, LAYERS)
    train_language_model(model, STEPS, seed=10)
    model.save_pretrained(folder)
