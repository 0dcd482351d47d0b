"""How many bytes a checkpoint's weights are: from the headers of its safetensors files, no torch.

A safetensors file is 8 bytes (little-endian length of what follows), a JSON object
`{name: {dtype, shape, data_offsets: [from, to]}}`, then the tensors themselves
(https://huggingface.co/docs/safetensors/index#format).
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import ConfigurationError
from autotune.models.config_json import offline
from autotune.records import Record

log = logging.getLogger(__name__)

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # what vLLM converts to the model's dtype
UNTYPED = "unknown"  # an index tells the sum only


class Weights(Record):
    """Bytes of a checkpoint's tensors, by data type as safetensors names it."""

    by_type: dict[str, int]

    @property
    def stored_bytes(self) -> int:
        return sum(self.by_type.values())

    def loaded_bytes(self, width: int | None) -> int:
        """In memory, when floating-point tensors are kept at `width` bytes; None: as stored."""
        return sum(
            size // FLOAT_BYTES[kind] * width if width and kind in FLOAT_BYTES else size
            for kind, size in self.by_type.items()
        )


def read_header(path: Path) -> Weights:
    """Sizes of the tensors of one file. Raises ConfigurationError for one that is damaged."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(_exactly(file.read(8), 8), "little")
            if length > MAX_HEADER_BYTES:
                raise ValueError(f"its header claims {length} bytes")
            header = json.loads(_exactly(file.read(length), length))
        size = path.stat().st_size
        ranges = [_tensor(name, entry) for name, entry in header.items() if name != "__metadata__"]
        end = max((to for _, _, to in ranges), default=0)
        if size < 8 + length + end:
            raise ValueError(f"{size} bytes, of {8 + length + end}: cut off")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigurationError(
            f"{path} is no usable safetensors file: {error}", hint="download it again"
        ) from error
    return _sum((kind, to - start) for kind, start, to in ranges)


def _exactly(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise ValueError("cut off within its header")
    return data


def _tensor(name: str, entry: Any) -> tuple[str, int, int]:
    """(dtype, from, to) of one entry."""
    match entry:
        case {"dtype": str(kind), "data_offsets": [int(start), int(to)]} if 0 <= start <= to:
            return kind, start, to
    raise ValueError(f"tensor {name!r:.80} is described by {entry!r:.80}")


def _sum(sizes: Iterable[tuple[str, int]]) -> Weights:
    total: Counter[str] = Counter()
    for kind, size in sizes:
        total[kind] += size
    return Weights(by_type=dict(total))


def folder_weights(folder: Path) -> Weights | None:
    """Of a local checkpoint: its shards' headers, or its index where not all shards are here.

    None: there are no safetensors. Raises ConfigurationError for damaged files.
    """
    shards = sorted(folder.glob("*.safetensors"))
    if (folder / INDEX).is_file():
        index = _index(folder / INDEX)
        named = {folder / str(name) for name in index["weight_map"].values()}
        present = all(shard.is_file() for shard in named)
        if not present or not named:
            return _index_total(index)
        shards = sorted(named)
    elif (folder / SINGLE).is_file():
        shards = [folder / SINGLE]  # others can be the same weights in another layout
    if not shards:
        return None
    parts = [read_header(shard).by_type for shard in shards]
    return _sum(item for part in parts for item in part.items())


def _index(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    match found:
        case {"weight_map": dict()}:
            return dict(found)
    raise ConfigurationError(f"{path} is no index of safetensors files: it has no weight_map")


def _index_total(index: Mapping[str, Any]) -> Weights | None:
    match index:
        case {"metadata": {"total_size": int(total) | float(total)}} if total > 0:
            return Weights(by_type={UNTYPED: int(total)})
    return None


def checkpoint_folder(model: str) -> Path | None:
    """The local folder of a checkpoint: itself, or where the Hugging Face cache has it."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    for name in (INDEX, SINGLE, "config.json"):
        try:
            cached = hub.try_to_load_from_cache(model, name)
        except HFValidationError:
            return None
        if isinstance(cached, str):
            return Path(cached).parent
    return None


def model_weights(model: str) -> Weights | None:
    """Of a folder or Hub id; from the Hub (headers only) where nothing is here. None: not known.

    Raises ConfigurationError for damaged files.
    """
    folder = checkpoint_folder(model)
    found = folder_weights(folder) if folder else None
    if found or Path(model).expanduser().is_dir() or offline():
        return found
    try:
        import huggingface_hub as hub

        files = hub.get_safetensors_metadata(model, timeout=10).files_metadata.values()
    except Exception as error:  # noqa: BLE001  (clients raise their HTTP library's errors)
        log.info("weights of %s: %s", model, error)
        return None
    tensors = [info for file in files for info in file.tensors.values()]
    return _sum((info.dtype, info.data_offsets[1] - info.data_offsets[0]) for info in tensors)
