"""Suffix decoding: like n-gram, with suffix trees; here over each request's own text only.

vLLM also keeps the answers of earlier requests (10000 by default) and drafts from them, whatever
the cache salt: a block measured twice would be drafted from its own first answers. So that cache
is off. A server that sees its answers again and again can do better with it than measured here.
"""

from __future__ import annotations

from autotune.methods import Method
from autotune.methods._knobs import SUFFIX

METHOD = Method(
    name="suffix",
    vllm_method="suffix",
    summary="suffix trees over the request's own text",
    needs="the package arctic-inference beside vLLM; pays off where text repeats",
    allows="any; N is a ceiling, drafts follow the match",
    default_lengths=(8, 16, 24),
    needs_drafter=False,
    takes_drafter=False,
    live_n=False,
    live_note="switching N kills the engine (vLLM 0.32): one start per N",
    config={"suffix_decoding_max_cached_requests": 0},
    package="arctic_inference",
    install="pip install arctic-inference==0.1.1",
    knobs=SUFFIX,
)
