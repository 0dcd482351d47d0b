"""A checkpoint's config.json: found on disk or on the Hub, and read with its types checked."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import ConfigurationError

log = logging.getLogger(__name__)


def find_config(model: str) -> tuple[Path | None, str]:
    """config.json of a local folder or a Hub id; (None, reason) if it cannot be had."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return _hub_config(model)
    path = folder / "config.json"
    return (path, "") if path.is_file() else (None, f"{folder} has no config.json")


def load_config(path: Path) -> Mapping[str, Any]:
    """Its content. Raises ConfigurationError, naming the file, for a damaged one."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"{path} is not a model configuration: no JSON object")
    return config


def first_value(sections: tuple[Mapping[str, Any], ...], *keys: str) -> Any:
    """Of the first key that any section has, the first section's; None: none has one."""
    values = (section.get(key) for key in keys for section in sections)
    return next((value for value in values if value is not None), None)


class Reader:
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
        value = first_value(sections, *keys)
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
