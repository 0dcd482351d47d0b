"""Whether target and drafter fit a GPU, and how many requests then do. Arithmetic on known facts.

Weights are a lower bound of what an engine needs: activations, graphs and the runtime come on top
and are known only once it runs. So a lack of memory is certain, and what is left is an upper bound.
A fact that is not known is None and speaks against nothing.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any

from autotune.errors import ConfigurationError
from autotune.preflight.weights import checkpoint_folder, model_weights
from autotune.records import Record

log = logging.getLogger(__name__)

TYPE_BYTES = {
    "float64": 8, "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "fp8_ds_mla": 1,
}  # fmt: skip
GIB = 1024**3


class KvShape(Record):
    """What one token keeps, from config.json. Layers with a state per request keep nothing."""

    full_layers: int
    sliding_layers: int = 0
    window: int | None = None  # tokens of a request that a sliding layer keeps; None: not told
    state_layers: int = 0  # linear attention, Mamba: a state per request, not counted
    kv_heads: int
    head_dim: int
    full_kv_heads: int | None = None  # of full layers, where they differ from sliding ones
    full_head_dim: int | None = None
    latent: int | None = None  # MLA: kv_lora_rank + qk_rope_head_dim, once for all heads
    type_bytes: int | None = None  # of the model's own data type

    def elements(self, tensor_parallel: int) -> int:
        """Numbers one token keeps on each of `tensor_parallel` devices, within every window."""
        return sum(self._by_kind(tensor_parallel))

    def request_elements(self, tokens: int, tensor_parallel: int) -> int:
        """Numbers a request of so many tokens keeps on a device, at least."""
        full, sliding = self._by_kind(tensor_parallel)
        return full * tokens + sliding * min(tokens, self.window or 0)

    def _by_kind(self, tensor_parallel: int) -> tuple[int, int]:
        """Numbers one token keeps in full and in sliding layers.

        A layer keeps key and value for each of its heads, which are split over the devices (each
        has at least one). MLA keeps one latent vector, on every device.
        """
        if self.latent is not None:
            return self.latent * self.full_layers, self.latent * self.sliding_layers
        full = self.full_layers * _shared(self.full_kv_heads or self.kv_heads, tensor_parallel)
        sliding = self.sliding_layers * _shared(self.kv_heads, tensor_parallel)
        return 2 * full * (self.full_head_dim or self.head_dim), 2 * sliding * self.head_dim


def _shared(heads: int, devices: int) -> int:
    return math.ceil(heads / devices)


class MemoryEstimate(Record):
    """Bytes on one device, unless `whole` says otherwise. None: not known."""

    whole_weight_bytes: int | None  # of the target, over all devices
    whole_drafter_bytes: int | None  # 0: nothing is loaded for drafting
    weight_bytes: int | None
    drafter_bytes: int | None
    kv_bytes_per_token: int | None  # of target and drafter
    usable_bytes: int | None  # what the engine may take
    left_bytes: int | None  # for KV cache, activations and graphs; below 0: cannot fit
    kv_tokens: int | None  # at most
    requests: int | None  # at most, of `tokens_per_request`
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool | None:
        """None: not known. True says only that the weights leave something."""
        return None if self.left_bytes is None else self.left_bytes > 0

    def figures(self) -> str:
        """For a reason: what is needed and what there is."""
        needed = f"weights {_gib(self.weight_bytes)} + drafter {_gib(self.drafter_bytes)} a device"
        return f"{needed}, {_gib(self.usable_bytes)} usable"


def expected_memory(
    model: str,
    drafter: str | None = None,
    *,
    device_bytes: int | None = None,
    utilization: float = 0.9,
    tensor_parallel: int = 1,
    dtype: str | None = None,
    kv_cache_dtype: str | None = None,
    tokens_per_request: int | None = None,
) -> MemoryEstimate:
    """What target and drafter take of each device's `device_bytes`.

    `utilization` is vLLM's --gpu-memory-utilization; `dtype` what floating-point weights are
    loaded as (None: as stored); `kv_cache_dtype` None or "auto": the model's. `drafter` None:
    nothing beyond the target's checkpoint is loaded. A damaged checkpoint counts as unknown.
    """
    width = TYPE_BYTES.get((dtype or "").removeprefix("torch."))
    whole, drafted = _loaded(model, width), _loaded(drafter, width) if drafter else 0
    weights, extra = _split(whole, tensor_parallel), _split(drafted, tensor_parallel)
    shapes = [kv_shape(name) for name in (model, drafter) if name]
    kept = [
        _kv_bytes(shape, tensor_parallel, kv_cache_dtype, width, tokens_per_request)
        for shape in shapes
    ]
    kv, request = _sum(*(token for token, _ in kept)), _sum(*(whole for _, whole in kept))
    usable = None if device_bytes is None else int(device_bytes * utilization)
    taken = _sum(weights, extra)
    left = None if usable is None or taken is None else usable - taken
    tokens = None if left is None or not kv else max(0, left) // kv
    return MemoryEstimate(
        whole_weight_bytes=whole,
        whole_drafter_bytes=drafted,
        weight_bytes=weights,
        drafter_bytes=extra,
        kv_bytes_per_token=kv,
        usable_bytes=usable,
        left_bytes=left,
        kv_tokens=tokens,
        requests=None if left is None or not request else max(0, left) // request,
        notes=tuple(dict.fromkeys(note for shape in shapes for note in _notes(shape))),
    )


def _loaded(model: str, width: int | None) -> int | None:
    try:
        weights = model_weights(model)
    except ConfigurationError as error:
        log.warning("memory of %s is not known: %s", model, error.message)
        return None
    return weights.loaded_bytes(width) if weights else None


def _split(whole: int | None, devices: int) -> int | None:
    return None if whole is None else math.ceil(whole / devices)


def _sum(*parts: int | None) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _kv_bytes(
    shape: KvShape | None, tensor_parallel: int, kv_cache_dtype: str | None, width: int | None,
    tokens: int | None,
) -> tuple[int | None, int | None]:  # fmt: skip
    """Of one token, and at least of a request of so many; each None where it is not known."""
    if shape is None:
        return None, None
    if kv_cache_dtype in (None, "auto"):
        size = width or shape.type_bytes
    else:
        size = TYPE_BYTES.get(kv_cache_dtype or "")
    if size is None:
        return None, None
    request = shape.request_elements(tokens, tensor_parallel) * size if tokens else None
    return shape.elements(tensor_parallel) * size, request


def _notes(shape: KvShape | None) -> list[str]:
    notes = []
    if shape and shape.sliding_layers:
        notes.append("sliding-window layers keep only a window of the tokens counted here")
    if shape and shape.state_layers:
        notes.append("the state of linear-attention layers is not counted")
    return notes


def kv_shape(model: str) -> KvShape | None:
    """From the checkpoint's config.json; None where it is not here or does not say."""
    folder = checkpoint_folder(model)
    try:
        text = (folder / "config.json").read_text(encoding="utf-8") if folder else "null"
        config = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        log.info("config.json of %s: %s", model, error)
        return None
    return parse_kv_shape(config) if isinstance(config, dict) else None


def parse_kv_shape(config: Mapping[str, Any]) -> KvShape | None:
    """From the content of a config.json (its text part where it has several); None: unclear."""
    part = config
    for key in ("text_config", "transformer_layer_config"):
        part = config[key] if isinstance(config.get(key), dict) else part
    layers, heads = _count(part, "num_hidden_layers"), _count(part, "num_attention_heads")
    hidden = _count(part, "hidden_size")
    kinds = _layer_kinds(part, layers)
    if kinds is None or heads is None:
        return None
    derived = hidden // heads if hidden else None
    dim, kv_heads = _count(part, "head_dim") or derived, _count(part, "num_key_value_heads")
    if dim is None:
        return None
    rank, rope = _count(part, "kv_lora_rank"), _count(part, "qk_rope_head_dim")
    own = {**config, **part}
    return KvShape(
        full_layers=kinds["full"],
        sliding_layers=kinds["sliding"],
        window=_count(part, "sliding_window"),
        state_layers=kinds["state"],
        kv_heads=kv_heads or heads,
        head_dim=dim,
        full_kv_heads=_count(part, "num_global_key_value_heads"),
        full_head_dim=_count(part, "global_head_dim"),
        latent=rank + (rope or 0) if rank else None,
        type_bytes=TYPE_BYTES.get(str(own.get("dtype") or own.get("torch_dtype"))),
    )


def _layer_kinds(part: Mapping[str, Any], layers: int | None) -> dict[str, int] | None:
    """How many layers keep all tokens, a window of them, or a state."""
    types = part.get("layer_types")
    if not isinstance(types, list) or not types:
        return None if layers is None else {"full": layers, "sliding": 0, "state": 0}
    sliding = sum("sliding" in str(kind) or "chunked" in str(kind) for kind in types)
    state = sum("linear" in str(kind) or "mamba" in str(kind) for kind in types)
    return {"full": len(types) - sliding - state, "sliding": sliding, "state": state}


def _count(part: Mapping[str, Any], key: str) -> int | None:
    value = part.get(key)
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if whole else None


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / GIB:.1f} GiB"
