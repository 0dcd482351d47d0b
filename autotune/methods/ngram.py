"""N-gram: looks the last tokens up in the prompt and output so far; needs no drafter."""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods._knobs import LOOKUP
from autotune.methods._rules import V1_ONLY

METHOD = Method(
    name="ngram",
    vllm_method="ngram",
    summary="copies what followed the same tokens earlier in the text",
    needs="nothing; pays off where text repeats (code edits, extraction)",
    allows="any; drafts can be shorter than N",
    default_lengths=tuple(range(1, 11)),
    needs_drafter=False,
    takes_drafter=False,
    live_note=V1_ONLY,
    config={"prompt_lookup_max": 4, "prompt_lookup_min": 2},
    knobs=LOOKUP,
)
