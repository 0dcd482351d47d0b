"""Prediction against measurement on a real engine: `make bench-predict`.

First measures windows of every target (tiny trained models with drafters of different decay, and
a real small model with n-grams), then fits the cost model on a few N and loads and predicts the
others. `--windows DIR` alone evaluates what was measured earlier; no engine is needed for that.

usage: python studies/bench/predict.py --windows DIR [--measure NAME,...] [--blocks 2]
       [--fit-lengths 1,3,6] [--fit-loads 1,8] [--baseline-everywhere] [--details]
       [--plots DIR] [--markdown FILE] [-- VLLM_ARGS...]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from evaluate import Outcome, Split, acceptance_table, details, evaluate, table
from plots import write_plots
from stepfit import step_table
from windows import load_windows

from autotune.records import Plan, Window

Measured = dict[str, tuple[Plan, list[Window]]]  # by the name of the target


def main() -> None:
    chosen = arguments()
    for name in chosen.measure:
        from targets import measure_target

        path = chosen.windows / f"{name}.jsonl"
        measure_target(name, path, chosen.model, chosen.vllm_args, chosen.blocks)
    measured = {path.stem: load_windows(path) for path in sorted(chosen.windows.glob("*.jsonl"))}
    split = Split(chosen.fit_lengths, chosen.fit_loads, chosen.baseline_everywhere)
    outcomes = outcomes_of(measured, split)
    text = report(measured, outcomes, split)
    print(text)
    if chosen.details:
        print(f"\n{details(outcomes)}")
    if chosen.markdown:
        chosen.markdown.write_text(text + "\n")
    if chosen.plots:
        write_plots(chosen.plots, measured, outcomes)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--windows", type=Path, default=Path(".demo/windows"))
    parser.add_argument("--measure", type=_names, default=(), help="targets to measure first")
    parser.add_argument("--blocks", type=int, default=2, help="prompt blocks of each candidate")
    parser.add_argument("--model", default=".demo/SmolLM2-135M-Instruct", help="the real model")
    parser.add_argument("--fit-lengths", type=_numbers, default=(1, 3, 6))
    parser.add_argument("--fit-loads", type=_numbers, default=(1, 8))
    parser.add_argument("--baseline-everywhere", action="store_true")
    parser.add_argument("--details", action="store_true", help="every single prediction")
    parser.add_argument("--plots", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("vllm_args", nargs="*", help="after --: for vllm serve")
    return parser.parse_args()


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def outcomes_of(measured: Measured, split: Split) -> list[Outcome]:
    return [
        outcome
        for name, (plan, windows) in measured.items()
        for outcome in evaluate(name, plan, windows, split)
    ]


def report(measured: Measured, outcomes: list[Outcome], split: Split) -> str:
    lengths, loads = (", ".join(map(str, values)) for values in split[:2])
    baseline = "at all loads" if split.baseline_everywhere else "at these loads"
    return "\n\n".join(
        [
            f"Fitted on N = {lengths} at loads {loads}; the baseline {baseline}.",
            table(outcomes),
            "Acceptance per position, all windows of the largest N:",
            acceptance_table(measured),
            "Step times by N and batch, and a linear fit of them:",
            step_table(measured),
        ]
    )


if __name__ == "__main__":
    main()
