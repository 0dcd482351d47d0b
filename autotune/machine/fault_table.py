"""The known faults: one entry a fault, read by faults.py. Figures are those of the source.

Where no source states the release of a fix, the bound is the first minor release that can hold it,
judged by the dates of the fix and of releases.
"""

from __future__ import annotations

from autotune.machine.faults import Fault

VLLM = "https://github.com/vllm-project/vllm"
AITER = "https://github.com/ROCm/aiter"
INSTINCT = ("gfx942", "gfx950")
MLA = "deepseek|kimi|glm-5"
MEASURED = "measured by spectune's authors"

ROCM = (
    Fault(
        id="rocm-aiter-off",
        severity="slow",
        happens="AITER is off, so vLLM takes ROCM_ATTN and Triton MoE: 57 against 98 tok/s with "
        "AITER at 200 tokens of prompt, 26 against 97 at 12k (Qwen3.5-122B-A10B-FP8, one "
        "request, MI325X), which is more than any N is worth",
        advice="settle it before tuning N: VLLM_ROCM_USE_AITER=1 and, after --, "
        "--attention-backend ROCM_AITER_UNIFIED_ATTN or ROCM_AITER_FA",
        source=f"{VLLM}/issues/56945",
        platforms=("rocm",), targets=INSTINCT, aiter=False, backends=(None, "ROCM_ATTN"),
    ),
    Fault(
        id="rocm-attn-despite-aiter",
        severity="slow",
        happens="with VLLM_ROCM_USE_AITER=1 vLLM still decodes MHA models on ROCM_ATTN; on "
        "ROCM_AITER_FA the time per token with EAGLE-3 is about half (Qwen3-VL-235B, 8x MI300X), "
        "and MI355X gains over 80 %",
        advice="name the backend after --: --attention-backend ROCM_AITER_FA, and compare",
        source=f"{VLLM}/issues/46596",
        platforms=("rocm",), targets=INSTINCT, aiter=True, backends=(None, "ROCM_ATTN"),
        vllm=">=0.19",
    ),
    Fault(
        id="eagle3-rocm-attn",
        severity="slow",
        happens="an EAGLE-3 drafter on ROCM_ATTN, ROCm's default, can lose its acceptance",
        advice="let the drafter run on another backend: attention_backend "
        "ROCM_AITER_UNIFIED_ATTN in the speculative config; low acceptance here says nothing of "
        "the drafter",
        source=f"{VLLM}/pull/47854",
        platforms=("rocm",), methods=("eagle3",), backends=(None, "ROCM_ATTN"),
    ),
    Fault(
        id="aiter-fa-several-queries",
        severity="wrong",
        happens="ROCM_AITER_FA's decode kernel took one query token only: with EAGLE-3 at N=3 "
        "everything ran and GSM8K fell to 0.048",
        advice="take a newer vLLM or another backend; compare outputs with no speculation",
        source=f"{VLLM}/issues/31625, fixed by pull 32877",
        platforms=("rocm",), vllm="<0.16", backends=("ROCM_AITER_FA",),
    ),
    Fault(
        id="aiter-fa-minimax-m3",
        severity="fails",
        happens="MiniMax-M3 needs KV blocks of 128, ROCM_AITER_FA has 16 and 32: the engine does "
        "not start with EAGLE-3",
        advice="after --: --attention-backend TRITON_ATTN; ROCM_AITER_UNIFIED_ATTN for the drafter",
        source=f"{VLLM}/pull/54180",
        platforms=("rocm",), methods=("eagle3",), models="minimax-m3",
        backends=("ROCM_AITER_FA",),
    ),
    Fault(
        id="aiter-mla-four-queries",
        severity="fails",
        happens="AITER's MLA decode kernels take at most 4 query tokens: a larger N can abort in "
        "graph capture, in C++, without a traceback (fp8 KV cache; bf16 on gfx942), or is verified "
        "row by row",
        advice="expect N of 4 and more to fail or to gain nothing; N of 3 and less is safe",
        source=f"{AITER}/issues/2760, {VLLM}/pull/57642",
        platforms=("rocm",), targets=INSTINCT, aiter=True, models=MLA, above_n=3,
    ),
    Fault(
        id="aiter-mla-dspark",
        severity="fails",
        happens="DSpark verifies 1 + 2N tokens on MLA models and AITER's kernels take 4: N=2 "
        "aborts in graph capture (bf16 queries, fp8 KV cache, gfx950)",
        advice="N=1, or a bf16 KV cache",
        source=f"{AITER}/issues/4752",
        platforms=("rocm",), targets=INSTINCT, aiter=True, models=MLA, methods=("dspark",),
        above_n=1,
    ),
    Fault(
        id="aiter-mla-mtp-logits",
        severity="wrong",
        happens="AITER MLA sized MTP's verification as a decode of one token: its logits are "
        "wrong and accuracy drops",
        advice="take a vLLM that has the fix, or compare outputs with no speculation",
        source=f"{VLLM}/pull/45227",
        platforms=("rocm",), aiter=True, models=MLA, methods=("mtp",), vllm="<0.25",
    ),
    Fault(
        id="mtp-start-gfx950",
        severity="fails",
        happens="MTP can fault at start on gfx950 (GLM-5.3-Flash: memory access fault on every "
        "rank, at 1 and at 5 draft tokens)",
        advice="expect GLM's mtp to fail here; other methods are not touched",
        source="https://github.com/vllm-project/recipes/pull/853",
        platforms=("rocm",), targets=("gfx950",), methods=("mtp",), models="glm",
    ),
    Fault(
        id="mtp-zero-gfx950",
        severity="wrong",
        happens="GLM-5.2's MTP accepts no draft on MI355X (vLLM 0.27.1, ROCm 7.2.3)",
        advice="acceptance of 0 is this fault, not the workload; try a newer build",
        source=f"{VLLM}/issues/52833",
        platforms=("rocm",), targets=("gfx950",), methods=("mtp",), models=r"glm-5\.2",
    ),
    Fault(
        id="mtp-hang-rccl",
        severity="fails",
        happens="MTP with tensor parallelism hangs at the first speculative step: the logits' "
        "all-gather is larger than what was warmed up (GLM-5.2-FP8, 8x MI300X)",
        advice="take a vLLM with the fix; spectune stops waiting after --request-timeout",
        source=f"{VLLM}/pull/48572",
        platforms=("rocm",), methods=("mtp",), models="deepseek|glm-5",
        flags=("--tensor-parallel-size", "-tp"), vllm=">=0.23",
    ),
    Fault(
        id="mtp-sparse-mla-gfx942",
        severity="fails",
        happens="MTP with sparse MLA under graphs ends in a memory access fault on gfx942 "
        "(GLM-5.1-FP8)",
        advice="take a vLLM after June 2026, or compare with --enforce-eager",
        source=f"{VLLM}/issues/47196",
        platforms=("rocm",), targets=("gfx942",), methods=("mtp",),
        models=r"glm-5|deepseek-v3\.2", vllm="<0.25",
    ),
    Fault(
        id="gpt-oss-triton",
        severity="wrong",
        happens="gpt-oss with speculation on TRITON_ATTN gives no output and accepts nothing",
        advice="leave the backend to vLLM, or name another",
        source=f"{VLLM}/issues/32434",
        platforms=("rocm",), models="gpt-oss", backends=("TRITON_ATTN",), vllm="<0.20",
    ),
    Fault(
        id="sleep-mode",
        severity="fails",
        happens="sleep mode and speculation together crash (MI250, vLLM 0.24)",
        advice="leave --enable-sleep-mode out of the measurement",
        source=f"{VLLM}/issues/47548",
        platforms=("rocm",), flags=("--enable-sleep-mode",),
    ),
    Fault(
        id="rocm-greedy-equality",
        severity="note",
        happens="greedy outputs with and without speculation are equal on ROCm only at "
        "max_num_seqs=1 on both sides",
        advice="spectune compares at batch 1; differences under load are information, no fault",
        source="public reports; not verified by spectune's authors",
        platforms=("rocm",),
    ),
)  # fmt: skip

EVERYWHERE = (
    Fault(
        id="gemma4-dflash-backend",
        severity="fails",
        happens="Gemma 4 forces TRITON_ATTN, that is handed on to the DFlash drafter, which needs "
        "non-causal attention, and attention_backend of the speculative config is ignored",
        advice="take vLLM 0.25 or later",
        source=f"{VLLM}/issues/42068",
        methods=("dflash",), models="gemma-4", vllm=">=0.20,<0.25",
    ),
    Fault(
        id="mtp-illegal-memory",
        severity="fails",
        happens="MTP under long contexts and sustained load can end in an illegal memory access "
        "(Qwen3.6-27B, several GPUs)",
        advice="a start that dies is this fault; measure with the contexts you will serve",
        source=f"{VLLM}/issues/40756",
        platforms=("cuda",), methods=("mtp",), models=r"qwen3\.6", vllm=">=0.19",
    ),
    Fault(
        id="mtp-pipeline-parallel",
        severity="fails",
        happens="MTP does not start under pipeline parallelism",
        advice="tensor parallelism, or eagle3, which newer builds run",
        source=f"{VLLM}/pull/50514",
        methods=("mtp", "gemma4_mtp"), pipeline_parallel=True, vllm="<0.28",
    ),
    Fault(
        id="dspark-below-block",
        severity="fails",
        happens="this vLLM refuses DSpark with N below the drafter's block",
        advice="only the block size itself can be measured here",
        source=f"{VLLM}/pull/47419",
        methods=("dspark",), vllm=">=0.26,<0.27",
    ),
    Fault(
        id="lora",
        severity="note",
        happens="LoRA with speculation is documented as unsupported and partly works",
        advice="acceptance of the base model says nothing about an adapter's requests",
        source=f"{VLLM}/issues/4872",
        flags=("--enable-lora",), vllm="<0.29",
    ),
    Fault(
        id="suffix-learns",
        severity="note",
        happens="suffix decoding keeps what it has generated: acceptance .428 in the first round "
        "over 100 prompts, .857 in the tenth",
        advice="trust what new prompts gave; repeated traffic will do better",
        source=f"{VLLM}/issues/51788",
        methods=("suffix",),
    ),
    Fault(
        id="structured-output",
        severity="note",
        happens="drafts against a grammar (strict tools, json_schema) can end a request with "
        "HTTP 500 or fill the log with 'Failed to advance FSM'",
        advice="if you serve structured output, measure with it",
        source=f"{VLLM}/issues/44006",
        vllm=">=0.22,<0.29", methods=("mtp", "gemma4_mtp", "dflash", "dspark", "ngram"),
    ),
    Fault(
        id="logprobs-bypass",
        severity="note",
        happens="requests that ask for logprobs, penalties or min_p run without speculation, "
        "silently",
        advice="count on no gain for such requests",
        source=f"{VLLM}/issues/34497",
        vllm="<0.14",
    ),
    Fault(
        id="metrics-old",
        severity="note",
        happens="the counters of speculation were named otherwise, and missing under data "
        "parallelism before 0.11",
        advice="take vLLM 0.19 or later: spectune reads its counters",
        source=f"{VLLM}/pull/16665",
        vllm="<0.19",
    ),
)  # fmt: skip

LIVE_N = (
    Fault(
        id="no-schedule",
        severity="note",
        happens="N cannot be switched on a running engine before vLLM 0.24",
        advice="one engine start for each N: allow time, or take a newer vLLM",
        source=f"{VLLM}/pull/32374",
        vllm="<0.24",
    ),
    Fault(
        id="data-parallel-schedule",
        severity="note",
        happens="under data parallelism vLLM drops the schedule that switches N",
        advice="one engine start for each N; or tune with one replica",
        source=f"{VLLM}/pull/45963",
        data_parallel=True,
    ),
    Fault(
        id="v2-drafts-largest",
        severity="note",
        happens="the V2 model runner drafts the largest N and cuts: acceptance is right, the time "
        "of drafting is the largest N's",
        advice="spectune starts these methods once for each N; VLLM_USE_V2_MODEL_RUNNER=0 brings "
        "live N back where you would serve with V1",
        source="read in vLLM 0.32, v1/worker/gpu/spec_decode",
        runner_v2=True, methods=("draft_model", "pard", "ngram", "dflash", "dspark"),
    ),
    Fault(
        id="schedule-piecewise",
        severity="note",
        happens="with a schedule the V1 runner captures no full graphs: 59.6 against 50.0 tok/s "
        "at one request",
        advice="live figures rank candidates; spectune confirms on a static start",
        source=f"{VLLM}/issues/49548",
        platforms=("rocm", "cuda"), runner_v2=False, vllm=">=0.24",
    ),
)  # fmt: skip

CPU = (
    Fault(
        id="cpu-temperature",
        severity="wrong",
        happens="at a temperature above 0 vLLM for CPU verifies drafts, of any method, with "
        "uninitialised memory: acceptance collapses and the text is garbage",
        advice="tune at --temperature 0 on CPU",
        source=f"{MEASURED}, vLLM 0.32; read in 0.23 to 0.32",
        platforms=("cpu",), vllm=">=0.23,<0.33", sampled=True,
    ),
    Fault(
        id="cpu-ngram-threads",
        severity="slow",
        happens="without NUMBA_NUM_THREADS=1 the n-gram drafter is 15 times slower on shared cores",
        advice="spectune sets it for its own engines; set it where you serve, too",
        source=f"{MEASURED}, vLLM 0.32 on 2 cores",
        platforms=("cpu",), methods=("ngram",), unset="NUMBA_NUM_THREADS",
    ),
)  # fmt: skip

FAULTS: tuple[Fault, ...] = (*ROCM, *EVERYWHERE, *LIVE_N, *CPU)
