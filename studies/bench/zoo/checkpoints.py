"""The folders of the zoo: made when asked for, kept under `.zoo` by a digest of their own recipe.

usage: python studies/bench/zoo/checkpoints.py      makes all and says how long each took
"""

from __future__ import annotations

import hashlib
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

HERE = Path(__file__).resolve().parent
ZOO = HERE.parents[2] / ".zoo"
SHARED = ("language.py", "layers.py", "saving.py", "training.py")  # part of every recipe
USES: dict[str, tuple[str, ...]] = {  # by kind, the kinds it is trained with; slow ones early
    "target": (),
    "mimo": (),
    "gemma4": (),
    "draft": (),
    "dflash": ("target",),
    "eagle3": ("target",),
    "eagle": ("target",),
    "gemma4_assistant": ("gemma4",),
    "medusa": ("target",),
    "pard": ("target", "draft"),
}
WORKERS = 2  # each trains on one thread

Say = Callable[[str], None]


def checkpoint(kind: str, zoo: Path = ZOO, say: Say = print) -> Path:
    """The folder of one kind. Needs torch and transformers; up to minutes the first time."""
    return checkpoints([kind], zoo, say)[kind]


def checkpoints(
    kinds: Iterable[str] = tuple(USES), zoo: Path = ZOO, say: Say = print
) -> dict[str, Path]:
    """Folders by kind, of all the kinds and of those they use. What is there is not made again.

    Raises KeyError for an unknown kind.
    """
    wanted = list(dict.fromkeys(name for kind in kinds for name in (*USES[kind], kind)))
    folders = {kind: zoo / f"{kind}-{digest(kind)}" for kind in wanted}
    missing = [kind for kind in wanted if not folders[kind].is_dir()]
    if missing:
        _make(missing, folders, say)
    return folders


def digest(kind: str) -> str:
    """Of the sources of the recipe and of the recipes it uses; others may change as they like."""
    files = [HERE / name for name in SHARED]
    files += [HERE / "kinds" / f"{name}.py" for name in (*USES[kind], kind)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:10]


def _make(missing: list[str], folders: dict[str, Path], say: Say) -> None:
    """In several processes, each kind as soon as those it uses are there."""
    waiting, running = list(missing), dict[Future[float], str]()
    context = multiprocessing.get_context("spawn")  # a fork of a process that has threads may hang
    with ProcessPoolExecutor(min(WORKERS, os.cpu_count() or 1), mp_context=context) as pool:
        while waiting or running:
            for kind in [k for k in waiting if all(folders[u].is_dir() for u in USES[k])]:
                waiting.remove(kind)
                used = {name: folders[name] for name in USES[kind]}
                running[pool.submit(_train, kind, folders[kind], used)] = kind
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                say(f"trained {running.pop(future)} in {future.result():.0f} s")


def _train(kind: str, folder: Path, used: dict[str, Path]) -> float:
    """Seconds that it took. Of several who make the same folder the first one counts."""
    import torch

    from zoo.language import tokenizer

    began = time.monotonic()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        unfinished = Path(temporary) / folder.name
        unfinished.mkdir()
        torch.manual_seed(0)
        importlib.import_module(f"zoo.kinds.{kind}").make(unfinished, used)
        tokenizer().save_pretrained(unfinished)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            shutil.rmtree(unfinished)
    return time.monotonic() - began


def main() -> None:
    began = time.monotonic()
    for kind, folder in checkpoints().items():
        print(f"{kind}: {folder}")
    print(f"all there after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))  # this folder's parent is where `zoo` is found
    from zoo.checkpoints import main as as_imported  # so that processes find its functions

    as_imported()
