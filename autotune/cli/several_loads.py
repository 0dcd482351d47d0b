"""The parts of the text output that several loads, latency limits and schedules add."""

from __future__ import annotations

from autotune.cli.terminal import Part, Row
from autotune.limits import describe
from autotune.records import Interval, Recommendation, ScheduleLoad, ScheduleTrial
from autotune.wording import candidate_text, load_text, tiers_text


def load_parts(r: Recommendation) -> list[Part]:
    """Limits, throughput against latency, and the trial of a schedule; nothing of what is not."""
    parts: list[Part] = []
    if r.limits is not None:
        parts += [("", ""), ("", f"limits: {describe(r.limits)}, for {_share(r)} of the requests")]
    if len(r.per_concurrency) > 1 and r.pareto:
        parts += [
            ("", ""),
            ("", "throughput against latency: no other measurement is better in both"),
            ("", _front(r)),
        ]
    if r.schedule_trial is not None and r.schedule_trial.loads:
        trial = r.schedule_trial
        parts += [("", ""), ("", _trial_heading(trial)), ("", _trial_rows(trial))]
    return parts


def short(interval: Interval | None) -> str:
    """ "2.34x [2.22, 2.48]"."""
    if interval is None:
        return "-"
    return f"{interval.value:.2f}x [{interval.low:.2f}, {interval.high:.2f}]"


def _share(r: Recommendation) -> str:
    return f"at least {r.limits_share:.0%}" if r.limits_share is not None else "all"


def _front(r: Recommendation) -> list[Row]:
    rows = [
        (
            candidate_text(p.method, p.num_speculative_tokens),
            load_text(p.concurrency),
            f"{p.output_tokens_per_second:.1f}",
            f"{p.tpot_p50_seconds * 1e3:.2f}",
        )
        for p in r.pareto
    ]
    return [("CANDIDATE", "CONC.", "TOK/S", "TPOT P50 MS"), *rows]


def _trial_heading(trial: ScheduleTrial) -> str:
    return (
        f"N by batch size, {trial.method} ({tiers_text(trial.tiers)}): {trial.outcome}, "
        f"{trial.reason}"
    )


def _trial_rows(trial: ScheduleTrial) -> list[Row]:
    heading = ("CONC.", "N", "TOK/S", f"AGAINST N={trial.static_num_speculative_tokens}",
               "SPEED-UP", "NOTE")  # fmt: skip
    return [heading, *(_trial_row(at) for at in trial.loads)]


def _trial_row(at: ScheduleLoad) -> Row:
    notes = [("beside a threshold", at.beside_threshold), ("worse", at.worse)]
    return (
        load_text(at.concurrency),
        str(at.num_speculative_tokens),
        f"{at.output_tokens_per_second:.1f}",
        short(at.versus_static),
        short(at.speedup),
        ", ".join(text for text, holds in notes if holds) or "-",
    )
