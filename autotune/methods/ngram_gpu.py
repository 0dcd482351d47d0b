"""N-gram on the GPU: the lookup of ngram as GPU code, so that async scheduling can stay on.

vLLM's V2 runner looks up on the GPU for both names (v1/worker/gpu/spec_decode/__init__.py), but
switches async scheduling off for `ngram` (config/vllm.py). Empty drafts count in its counters.
"""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods._knobs import LOOKUP

METHOD = Method(
    name="ngram_gpu",
    vllm_method="ngram_gpu",
    summary="ngram's lookup on the GPU, with async scheduling",
    needs="a GPU; pays off where text repeats",
    allows="any; drafts can be shorter than N",
    default_lengths=(2, 4, 6, 8),
    needs_drafter=False,
    takes_drafter=False,
    live_n=False,
    live_note="V2 always drafts the largest N; on V1 not tried",
    on_request="it looks up what ngram does; --methods ngram_gpu tries it",
    config={"prompt_lookup_max": 4, "prompt_lookup_min": 2},
    not_on_cpu="its lookup runs on a GPU; ngram is the same on the CPU",
    knobs=LOOKUP,
)
