"""The catalogue: models by Hub id and short name, and the drafters published for them."""

from __future__ import annotations

import difflib
import importlib.resources
import os
import re
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from autotune.errors import ConfigurationError
from autotune.records import Record

HUB_ID = re.compile(r"\b[\w.-]{1,96}\b/\b[\w.-]{1,96}\b", re.ASCII)
VARIABLE = "SPECTUNE_CATALOG"  # a user's own catalogue
Checked = Literal["source", "unverified"]


class DrafterEntry(Record):
    """A draft checkpoint. Block facts are used only while its config.json cannot be read."""

    id: str = Field(min_length=1)
    checked: Checked = "unverified"
    block_size: int | None = Field(default=None, ge=1)
    sample_from_anchor: bool | None = None
    note: str | None = None


class CatalogEntry(Record):
    """A model: what drafts for it. The first drafter of a method is the one that is used."""

    id: str = Field(min_length=1)
    short: str = ""  # empty: the part of the id after the slash
    checked: Checked = "unverified"
    variants: tuple[str, ...] = ()  # ids of the same model, quantised: same drafters
    native: tuple[str, ...] = ()  # methods whose weights are in the model's own checkpoint
    drafters: dict[str, tuple[DrafterEntry, ...]] = Field(default_factory=dict)
    # by method: keys of speculative_config that published commands for ROCm set; only advice
    on_rocm: dict[str, dict[str, str | int | bool]] = Field(default_factory=dict)

    @property
    def short_name(self) -> str:
        return self.short or self.id.rpartition("/")[2]


class _CatalogFile(Record):
    model: tuple[CatalogEntry, ...] = ()


class ResolvedModel(Record):
    """What a user's model name stands for."""

    model: str  # Hub id or absolute path: what vLLM is given
    name: str  # for people and files: short name, folder name
    local: bool = False
    entry: CatalogEntry | None = None
    discovered: dict[str, tuple[DrafterEntry, ...]] = Field(default_factory=dict)  # on the Hub

    def drafters(self, method: str) -> tuple[DrafterEntry, ...]:
        """Known drafters of a method, the one to use first: the catalogue's, then the Hub's."""
        catalogued = self.entry.drafters.get(method, ()) if self.entry else ()
        known = {drafter.id for drafter in catalogued}
        found = self.discovered.get(method, ())
        return (*catalogued, *(drafter for drafter in found if drafter.id not in known))


def load_catalog(path: str | None = None) -> tuple[CatalogEntry, ...]:
    """The packaged catalogue; entries of the user's file replace those of the same id.

    `path` defaults to $SPECTUNE_CATALOG. Raises ConfigurationError for a bad file.
    """
    entries = packaged_catalog()
    path = path or os.environ.get(VARIABLE) or None
    if path:
        try:
            text = Path(path).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"catalogue {path} cannot be read: {error}") from error
        own = _parse(text, f"catalogue {path}")
        replaced = {entry.id.lower() for entry in own}
        entries = own + tuple(entry for entry in entries if entry.id.lower() not in replaced)
    return entries


def packaged_catalog() -> tuple[CatalogEntry, ...]:
    """The catalogue that comes with spectune, whatever the user has of his own."""
    packaged = importlib.resources.files("autotune") / "catalog.toml"
    return _parse(packaged.read_text(encoding="utf-8"), "the packaged catalogue")


def _parse(text: str, source: str) -> tuple[CatalogEntry, ...]:
    from autotune.methods import get_method

    try:
        entries = _CatalogFile.model_validate(tomllib.loads(text)).model
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source} is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{source}: {where}: {first['msg']}") from error
    for entry in entries:
        for method in (*entry.native, *entry.drafters, *entry.on_rocm):
            try:
                known = get_method(method)
                known.with_options(entry.on_rocm.get(method, {}))
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"{source}: {entry.id}: {error.message}", error.hint
                ) from None
            if method in entry.drafters and not known.takes_drafter:
                raise ConfigurationError(f"{source}: {entry.id}: {method} takes no drafter")
    return entries


def resolve_model(name: str, catalog: str | None = None) -> ResolvedModel:
    """Turn what a user typed into a Hub id or a local path.

    An existing folder wins, then a catalogue name (any case), then any `org/name`. Raises
    ConfigurationError for a folder that is no model and for an unknown bare name.
    """
    name = name.strip()
    entries = load_catalog(catalog)
    if folder := existing_path(name):
        return ResolvedModel(model=local_checkpoint(folder), name=folder.name, local=True)
    wanted = name.lower()
    for entry in entries:
        if wanted in (entry.short_name.lower(), entry.id.lower()):
            return ResolvedModel(model=entry.id, name=entry.short_name, entry=entry)
        for variant in entry.variants:
            short = variant.rpartition("/")[2]
            if wanted in (variant.lower(), short.lower()):
                return ResolvedModel(model=variant, name=short, entry=entry)
    if is_hub_id(name):
        return ResolvedModel(model=name, name=name.partition("/")[2])
    raise _unknown(name, entries)


def is_hub_id(name: str) -> bool:
    """`org/name` as the Hub allows it (huggingface_hub: validate_repo_id)."""
    refused = "--" in name or ".." in name or name.endswith(".git")
    return HUB_ID.fullmatch(name) is not None and not refused


def existing_path(name: str) -> Path | None:
    """The absolute path if something of that name exists; names that no file can have do not."""
    try:
        path = Path(name).expanduser()
        return path.resolve() if name and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        return None


def local_checkpoint(path: Path) -> str:
    """The path of a checkpoint folder for vLLM. Raises ConfigurationError if it is none."""
    if not path.is_dir():
        raise ConfigurationError(
            f"{path} is a file", hint="give the checkpoint's folder, which holds config.json"
        )
    if not (path / "config.json").is_file():
        raise ConfigurationError(
            f"the folder {path} has no config.json, so it is no model checkpoint",
            hint="for a model on the Hub run from another folder, or give its full path",
        )
    return str(path)


def _unknown(name: str, entries: tuple[CatalogEntry, ...]) -> ConfigurationError:
    if "/" in name or name.startswith(("~", ".")):
        return ConfigurationError(
            f"no folder {name!r}", hint="give an existing folder or a Hub id (org/name)"
        )
    names = {entry.short_name.lower(): entry.short_name for entry in entries}
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    advice = "give a full Hub id (org/name) or a folder, or see `spectune models`"
    if close:
        advice = f"did you mean {' or '.join(names[key] for key in close)}? Else {advice}"
    return ConfigurationError(f"unknown model {name!r}", hint=advice)
