"""Every error a user can meet; each class carries the process exit code (docs/cli.md)."""

from __future__ import annotations


class SpectuneError(Exception):
    """Base class. The message says what was wrong; `hint` says what to do about it."""

    exit_code = 2

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigurationError(SpectuneError):
    """Unknown model, workload or method; a bad file; a bad option."""


class SamplerError(ConfigurationError, ValueError):
    """An Optuna study that SpectuneSampler cannot serve; also what Optuna raises there."""


class StorageError(SpectuneError):
    """The study database cannot be used as it is."""


class EngineError(SpectuneError):
    """The engine could not do it. `last_words` is the end of the engine's own log."""

    exit_code = 3

    def __init__(self, message: str, hint: str | None = None, last_words: str = "") -> None:
        super().__init__(message, hint)
        self.last_words = last_words


class EngineStartError(EngineError):
    """The engine refused its configuration or died before it was ready."""


class EngineDiedError(EngineError):
    """The engine was ready once and is gone, or hangs."""


class LiveSwitchError(EngineError):
    """N was switched on a running engine and the counters show that it is not in force."""


class UnusableMeasurementError(EngineError):
    """The engine ran, but what it delivered must not be ranked (no drafts, garbage output, ...)."""
