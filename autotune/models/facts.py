"""What a checkpoint's config.json says about drafting, read without transformers or a download.

Only config.json is looked at: in a local folder, in the Hugging Face cache, or (unless offline)
fetched from the Hub. Where it cannot be had the facts are unknown; nobody guesses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.models.config_json import Reader, find_config, first_value, load_config
from autotune.records import Record

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
    path, reason = find_config(model)
    if path is None:
        return ModelFacts(source=model, unknown=reason)
    return parse_config(load_config(path), source=model, path=path)


def parse_config(config: Mapping[str, Any], source: str, path: Path) -> ModelFacts:
    """Facts from the content of a config.json; `path` is named in errors."""
    read = Reader(config, path)
    text, layer = read.section("text_config"), read.section("transformer_layer_config")
    flash, eagle = read.section("dflash_config"), read.section("eagle_config")
    main = (config, text, layer)
    kind = read.text("speculators_model_type")
    anchor = first_value((flash, config), "sample_from_anchor")
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
        dspark_key=first_value(main, "dspark_block_size") is not None,
        dspark_inside=(model_type or "").startswith("deepseek_v4")
        and first_value(main, "dspark_block_size") is not None,
        speculators_type=kind,
        speculative_tokens=_speculative_tokens(read),
        verifier=_verifier(read),
        parallel_token=first_value((flash,), "mask_token_id") is not None
        or first_value((config,), *_PARALLEL_TOKENS) is not None,
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


def _n_predict(read: Reader, model_type: str | None) -> int | None:
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


def _quantization(read: Reader) -> str | None:
    """quant_method of quantization_config, wherever the family keeps it."""
    sections = (read.config, read.section("text_config"))
    found = next((s["quantization_config"] for s in sections if s.get("quantization_config")), None)
    method = found.get("quant_method") if isinstance(found, dict) else None
    return method if isinstance(method, str) else None


def _speculative_tokens(read: Reader) -> int | None:
    methods = read.section("speculators_config").get("proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods else None
    return read.integer((first,), "speculative_tokens") if isinstance(first, dict) else None


def _verifier(read: Reader) -> str | None:
    verifier = read.section("speculators_config").get("verifier")
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return name if isinstance(name, str) and name else None
