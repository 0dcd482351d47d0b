"""What a checkpoint's config.json says about drafting, read without transformers or a download.

Only config.json is looked at: in a local folder, in the Hugging Face cache, or (unless offline)
fetched from the Hub. Where it cannot be had the facts are unknown; nobody guesses them.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import ConfigurationError
from autotune.records import Record

log = logging.getLogger(__name__)

# Keys that hold the number of multi-token-prediction modules, and model types for which vLLM
# assumes one module where none is named (vllm/config/speculative.py, hf_config_override).
MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
MTP_ONE = {"dots3_note", "longcat_flash", "step3p5", "step3p7", "mimo_v2_mtp"}
# What tells the kind of a drafter: parts of its architecture's name, first match wins (names that
# vLLM 0.32 registers for drafters, model_executor/models/registry.py), else its model_type.
KINDS = {
    "dspark": "dspark", "dflash": "dflash", "lilicorr": "dflash", "museglimmer": "dflash",
    "peagle": "peagle", "eagle3": "eagle3", "eagle": "eagle", "medusa": "medusa",
    "mlpspeculator": "mlp_speculator", "gemma4mtp": "gemma4_mtp", "mtp": "mtp",
}  # fmt: skip
TYPES = {
    "gemma4_assistant": "gemma4_mtp", "gemma4_unified_assistant": "gemma4_mtp",
    "gemma4_mtp": "gemma4_mtp", "medusa": "medusa", "mlp_speculator": "mlp_speculator",
    "eagle": "eagle",
}  # fmt: skip


class ModelFacts(Record):
    """Facts of one checkpoint. None: config.json does not say (or was not to be had)."""

    source: str  # Hub id or folder
    unknown: str | None = None  # why config.json could not be read; None: it was read
    model_type: str | None = None
    architectures: tuple[str, ...] = ()
    n_predict: int | None = None  # multi-token-prediction modules
    block_size: int | None = None  # DFlash, DSpark: the block the drafter was trained with
    sample_from_anchor: bool | None = None  # the anchor's slot predicts a token too
    dspark_key: bool = False  # has a dspark_block_size, as DeepSeek's own checkpoints do
    dspark_inside: bool = False  # the target's own checkpoint carries DSpark stages
    speculators_type: str | None = None  # `speculators_model_type`
    speculative_tokens: int | None = None  # of speculators_config's first proposal method
    verifier: str | None = None  # of speculators_config: the model it was made for
    parallel_token: bool = False  # a mask token for parallel drafting is named
    draft_vocab_size: int | None = None  # EAGLE-3 and later heads: their own, smaller vocabulary
    eagle3_keys: bool = False  # names layers of the target to read: an EAGLE-3 head
    dflash_keys: bool = False  # has a dflash_config
    layers: int | None = None  # num_hidden_layers
    quantization: str | None = None  # method of quantization_config
    num_heads: int | None = None  # Medusa heads
    vocab_size: int | None = None
    hidden_size: int | None = None
    target_hidden_size: int | None = None  # of the model whose hidden states a drafter reads
    max_position_embeddings: int | None = None

    @property
    def known(self) -> bool:
        return self.unknown is None

    @property
    def kind(self) -> str | None:
        """The kind of drafter this is ("eagle3", "dflash", ...); None: cannot be told."""
        if self.speculators_type:
            return self.speculators_type
        names = " ".join(self.architectures).lower()
        by_name = next((kind for part, kind in KINDS.items() if part in names), None)
        by_type = TYPES.get(self.model_type or "") or (
            "mtp" if (self.model_type or "").endswith("_mtp") else None
        )
        if by_name or by_type:
            return by_name or by_type
        if self.dflash_keys:
            return "dflash"
        # some EAGLE-3 heads keep the plain architecture, as vLLM's EAGLEConfig allows
        if self.draft_vocab_size or self.eagle3_keys:
            return "eagle3"
        headless = not self.architectures and not self.model_type  # early Medusa checkpoints
        return "medusa" if self.num_heads and headless else None


def read_facts(model: str) -> ModelFacts:
    """Facts of a Hub id or a local folder. Raises ConfigurationError for a damaged config.json."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        path, reason = folder / "config.json", f"{folder} has no config.json"
    else:
        found, reason = _hub_config(model)
        path = found or Path("/nonexistent")
    if not path.is_file():
        return ModelFacts(source=model, unknown=reason)
    return parse_config(_load(path), source=model, path=path)


def _load(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"{path} is not a model configuration: no JSON object")
    return config


def parse_config(config: Mapping[str, Any], source: str, path: Path) -> ModelFacts:
    """Facts from the content of a config.json; `path` is named in errors."""
    read = _Reader(config, path)
    text, layer = read.section("text_config"), read.section("transformer_layer_config")
    flash, eagle = read.section("dflash_config"), read.section("eagle_config")
    main = (config, text, layer)
    kind = read.text("speculators_model_type")
    anchor = _first((flash, config), "sample_from_anchor")
    if anchor is None and kind == "dspark":
        anchor = False  # the default of that format (vLLM: speculators/algos.py)
    model_type = read.text("model_type")
    return ModelFacts(
        source=source,
        model_type=model_type,
        architectures=read.names("architectures"),
        n_predict=_n_predict(read, model_type),
        # vLLM's own order: dflash_config before eagle_config before the top level
        block_size=read.integer((flash, eagle, config), "block_size", "dspark_block_size"),
        sample_from_anchor=None if anchor is None else bool(anchor),
        dspark_key=_first(main, "dspark_block_size") is not None,
        dspark_inside=(model_type or "").startswith("deepseek_v4")
        and _first(main, "dspark_block_size") is not None,
        speculators_type=kind,
        speculative_tokens=_speculative_tokens(read),
        verifier=_verifier(read),
        parallel_token=_first((flash,), "mask_token_id") is not None
        or _first((config,), *_PARALLEL_TOKENS) is not None,
        draft_vocab_size=read.integer((config,), "draft_vocab_size"),
        eagle3_keys=bool(eagle) or config.get("eagle_aux_hidden_state_layer_ids") is not None,
        dflash_keys=bool(flash),
        layers=read.integer(main, "num_hidden_layers"),
        quantization=_quantization(read),
        num_heads=read.integer((config,), "medusa_num_heads", "num_heads"),
        vocab_size=read.integer(main, "vocab_size"),
        hidden_size=read.integer(main, "hidden_size"),
        target_hidden_size=read.integer((config,), "target_hidden_size", "backbone_hidden_size"),
        max_position_embeddings=read.integer(main, "max_position_embeddings"),
    )


_PARALLEL_TOKENS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")


def _n_predict(read: _Reader, model_type: str | None) -> int | None:
    """vLLM's n_predict: how many tokens one pass over the MTP modules predicts."""
    names = read.names("architectures")
    if any(name.startswith("MiMoV2") for name in names):
        return 1  # vLLM uses the first module only
    sections = (read.config, read.section("text_config"), read.section("mtp_config"))
    found = read.integer(sections, "n_predict", *MTP_KEYS)
    if found is None and model_type in MTP_ONE:
        return 1
    assistant = (model_type or "").startswith("gemma4") and (model_type or "").endswith("assistant")
    return 1 if assistant else found


def _quantization(read: _Reader) -> str | None:
    """quant_method of quantization_config, wherever the family keeps it."""
    sections = (read.config, read.section("text_config"))
    found = next((s["quantization_config"] for s in sections if s.get("quantization_config")), None)
    method = found.get("quant_method") if isinstance(found, dict) else None
    return method if isinstance(method, str) else None


def _speculative_tokens(read: _Reader) -> int | None:
    methods = read.section("speculators_config").get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else None
    return read.integer((first,), "speculative_tokens") if isinstance(first, dict) else None


def _verifier(read: _Reader) -> str | None:
    verifier = read.section("speculators_config").get("verifier")
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return name if isinstance(name, str) and name else None


def _first(sections: tuple[Mapping[str, Any], ...], *keys: str) -> Any:
    values = (section.get(key) for key in keys for section in sections)
    return next((value for value in values if value is not None), None)


class _Reader:
    """Typed access to a config.json; a value of the wrong type is an error that names the file."""

    def __init__(self, config: Mapping[str, Any], path: Path) -> None:
        self.config, self.path = config, path

    def fail(self, key: str, value: Any, expected: str) -> ConfigurationError:
        return ConfigurationError(f"{self.path}: {key} is {value!r}, expected {expected}")

    def section(self, key: str) -> Mapping[str, Any]:
        value = self.config.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.fail(key, value, "an object")
        return value or {}

    def text(self, key: str) -> str | None:
        value = self.config.get(key)
        if value is not None and not isinstance(value, str):
            raise self.fail(key, value, "a string")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        value = self.config.get(key) or []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.fail(key, value, "a list of strings")
        return tuple(value)

    def integer(self, sections: tuple[Mapping[str, Any], ...], *keys: str) -> int | None:
        value = _first(sections, *keys)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.fail("/".join(keys), value, "a whole number, 0 or more")
        return value


def _hub_config(model: str) -> tuple[Path | None, str]:
    """config.json of a Hub id from the cache or the Hub; (None, reason) if it cannot be had."""
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        return None, "huggingface_hub is not installed"
    try:
        cached = hub.try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return None, "no Hub id"
    if isinstance(cached, str):
        return Path(cached), ""
    if offline():
        return None, "not in the local cache, and Hugging Face is set to offline"
    if _hub_down:
        return None, _hub_down[0]
    try:
        # asked once, without the download's long retries
        hub.get_hf_file_metadata(hub.hf_hub_url(model, "config.json"), timeout=10)
        return Path(hub.hf_hub_download(model, "config.json")), ""
    except HfHubHTTPError as error:
        return None, f"the Hub refused: {type(error).__name__}"
    except Exception as error:  # noqa: BLE001  (clients raise their HTTP library's errors)
        log.debug("config.json of %s: %s", model, error)
        _hub_down.append(f"the Hub cannot be reached: {type(error).__name__}")
        return None, _hub_down[0]


_hub_down: list[str] = []  # the reason, once the Hub could not be reached: not asked again


def offline() -> bool:
    """Whether the user told Hugging Face libraries to stay off the network."""
    values = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in {"1", "ON", "YES", "TRUE"} for value in values)
