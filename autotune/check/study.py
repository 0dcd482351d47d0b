"""A stored study as one side of a check: its recommendation, and its windows' counts by prompt."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from autotune import stats
from autotune.acceptance_evidence import prompt_drafts
from autotune.check.recommendation import recommended_side
from autotune.check.records import CheckRow, CheckSide
from autotune.documents import complaints
from autotune.errors import ConfigurationError
from autotune.records import BlockRole, Window
from autotune.store import StoredStudy, StoredWindow


def study_side(study: StoredStudy, noise: float = stats.ASSUMED_NOISE) -> CheckSide:
    """Raises ConfigurationError for a study that has no recommendation yet."""
    if study.recommendation is None:
        raise ConfigurationError(
            f"study {study.info.id} has no recommendation: it is {study.info.state}",
            hint="the same `spectune run` command continues it",
        )
    document = study.recommendation.model_dump(mode="json", by_alias=True)
    try:
        side = recommended_side(document, f"study {study.info.id}", noise)
    except ValidationError as error:
        raise ConfigurationError(f"study {study.info.id}: {complaints(error)}") from error
    rows = tuple(_with_prompts(row, study.windows) for row in side.rows)
    return side.model_copy(update={"kind": "study", "rows": rows})


def _with_prompts(row: CheckRow, stored: Sequence[StoredWindow]) -> CheckRow:
    """Held-out windows where the candidate was confirmed, else those of the search."""
    by_role: dict[str, list[Window]] = {}
    for each in stored:
        window = each.window
        key = (window.method, window.num_speculative_tokens, window.concurrency)
        if key == row.key:
            by_role.setdefault(each.block.partition(":")[0], []).append(window)
    windows = by_role.get(BlockRole.CONFIRM) or by_role.get(BlockRole.SEARCH) or []
    return row.model_copy(update={"prompts": prompt_drafts(windows)}) if windows else row
