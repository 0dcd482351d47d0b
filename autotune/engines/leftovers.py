"""What earlier runs left behind: state files of engines, and how the next run ends those engines.

Needed only where tuner and supervisor were both killed, e.g. by the out-of-memory killer.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from autotune.engines import supervisor
from autotune.engines.supervisor import Identity
from autotune.errors import EngineStartError
from autotune.records import Record

logger = logging.getLogger(__name__)

STATE_VARIABLE = "SPECTUNE_STATE_DIR"  # overrides where state files are


class CleanedUp(Record):
    """One engine of an earlier run whose state file was found."""

    state_file: str
    command: tuple[str, ...]
    action: Literal["killed", "already gone", "other boot"]
    killed: tuple[int, ...] = ()
    survivors: tuple[int, ...] = ()


class EngineState(Record):
    """The supervisor's state file: who belongs to an engine, and who is responsible for it."""

    node: str
    boot_id: str
    pid_namespace: str
    owner: Identity
    supervisor: Identity
    engine_pid: int
    members: tuple[Identity, ...]
    token: str
    command: tuple[str, ...]


def state_dir() -> Path:
    """Where this user's engines are noted, whatever folder a run starts in.

    SPECTUNE_STATE_DIR, else spectune/engines below XDG_STATE_HOME or ~/.local/state (XDG Base
    Directory Specification: a relative XDG_STATE_HOME is ignored). Raises EngineStartError where
    there is no home.
    """
    if given := os.environ.get(STATE_VARIABLE):
        return Path(given).absolute()
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():
        try:
            base = Path.home() / ".local" / "state"
        except RuntimeError as error:
            raise EngineStartError(
                f"there is no place for notes on running engines: {error}",
                hint=f"name a folder of your own: {STATE_VARIABLE}",
            ) from error
    return base / "spectune" / "engines"


def cleanup_stale(state_dir: Path, wait_seconds: float = 30.0) -> list[CleanedUp]:
    """End what earlier runs left behind: engines whose tuner and supervisor were both killed.

    Kills only processes that are provably such an engine's (`supervisor.family`). Leaves alone
    what belongs to a running tuner, another user, another machine or another pid namespace. A
    supervisor that is still at work for a dead tuner gets `wait_seconds` to finish.
    """
    require_linux()
    done = []
    for path in sorted(state_dir.glob("*.json")):
        state = read_state(path)
        result = _clean_one(path, state, wait_seconds) if state else None
        if result is not None:
            logger.warning("engine of an earlier run: %s (%s)", result.action, path.name)
            done.append(result)
    return done


def _clean_one(path: Path, state: EngineState, wait_seconds: float) -> CleanedUp | None:
    here = supervisor.this_machine()
    about = {"state_file": str(path), "command": state.command}
    if state.node != here["node"]:
        return None
    if state.boot_id != here["boot_id"]:
        path.unlink(missing_ok=True)
        return CleanedUp(**about, action="other boot")
    if state.pid_namespace != here["pid_namespace"] or supervisor.is_alive(state.owner):
        return None
    if not supervisor.wait_for(lambda: not supervisor.is_alive(state.supervisor), wait_seconds):
        return None
    if not path.exists():
        return None  # its supervisor has just finished the job
    outcome = finish_engine(path, state.members, state.token)
    action = "killed" if outcome["leftovers"] else "already gone"
    return CleanedUp(
        **about,
        action=action,
        killed=tuple(sorted(set(outcome["leftovers"]) - set(outcome["survivors"]))),
        survivors=outcome["survivors"],
    )


def finish_engine(path: Path, members: Sequence[Identity], token: str) -> dict[str, list[int]]:
    """Kill what is left of one engine; the state file goes when nothing is."""
    outcome = supervisor.finish(
        lambda: supervisor.living(lambda: supervisor.family(members, token)),
        supervisor.ORPHAN_SECONDS,
    )
    if not outcome["survivors"]:
        path.unlink(missing_ok=True)
        path.with_suffix(".tmp").unlink(missing_ok=True)
    return outcome


def read_state(path: Path) -> EngineState | None:
    """None for what is not a state file of ours."""
    try:
        if path.stat().st_uid != os.geteuid():
            return None
        return EngineState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        logger.warning("%s is not an engine state file: %s", path, error)
        return None


def require_linux() -> None:
    if sys.platform != "linux":
        raise EngineStartError(
            f"engines can only be run on Linux, not on {sys.platform}",
            hint="use --engine replay or --engine simulate",
        )
