"""Runs in the interpreter that has vLLM: holds server command lines against vLLM's own validators.

One JSON object a line. First it says `{"ready": VERSION}`; then each `{"arguments": [...]}` on
stdin is answered by `{"ok": true, "facts": {...}}` or `{"ok": false, "error": "..."}`. It does what
a server does before it loads anything (parse, validate, build the engine's configuration), imports
vLLM once for all of them, and ends when stdin does. With `"chats": [[{role, content}, ...], ...]`
the answer also has `"tokens": [...]`, the length of each prompt. Nothing of spectune is imported.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TextIO

# Where the server's parser lives: since 0.30 or so, and before.
PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
PARSER_CLASSES = ("vllm.utils.argparse_utils", "vllm.utils")

TOKENIZERS = ("vllm.tokenizers", "vllm.tokenizers.registry", "vllm.transformers_utils.tokenizer")

LAST_SECONDS = 3.0  # after stdin has ended, for what was asked before

# What is told of an accepted configuration: name -> where it stands in VllmConfig.
FACTS = {
    "max_model_len": "model_config.max_model_len",
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "tensor_parallel_size": "parallel_config.tensor_parallel_size",
    "pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "gpu_memory_utilization": "cache_config.gpu_memory_utilization",
    "capture_sizes": "compilation_config.cudagraph_capture_sizes",
    "cudagraph_mode": "compilation_config.cudagraph_mode.name",
    "dtype": "model_config.dtype",
    "logits_processors": "model_config.logits_processors",
    "v2_runner": "use_v2_model_runner",
}


class RefusedError(Exception):
    """vLLM's command-line parser does not take the arguments."""


def main() -> None:
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).resolve() != here]
    # Whatever vLLM prints goes to stderr: stdout carries answers only.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=end_with_input, daemon=True).start()
    version, build = load()
    tell(answers, {"ready": version})
    for line in sys.stdin:
        asked = json.loads(line)
        tell(answers, answer(build, asked["arguments"], asked.get("chats", [])))


def end_with_input() -> None:
    """Nothing is left behind where spectune was killed while vLLM is busy: its pipe hangs up.

    The parent's pid would not do: it may be gone before we ask for it, or be a wrapper of ours.
    """
    pipe = select.poll()
    pipe.register(0, 0)  # a hang-up is told without being asked for
    pipe.poll()
    time.sleep(LAST_SECONDS)
    os.killpg(os.getpgrp(), signal.SIGKILL)  # the group is ours: it was started as a session


def tell(answers: TextIO, document: dict[str, Any]) -> None:
    answers.write(json.dumps(document) + "\n")
    answers.flush()


def load() -> tuple[str, Callable[[list[str]], Any]]:
    """vLLM's version, and what turns arguments into its VllmConfig, as its API server does."""
    import vllm  # type: ignore[import-not-found, unused-ignore]
    from vllm.engine.arg_utils import AsyncEngineArgs  # type: ignore[import-not-found, unused-ignore]
    from vllm.usage.usage_lib import UsageContext  # type: ignore[import-not-found, unused-ignore]

    module = first(PARSERS)
    parser = module.make_arg_parser(first(PARSER_CLASSES).FlexibleArgumentParser())
    parser.error = refuse

    def build(arguments: list[str]) -> Any:
        parsed = parser.parse_args(arguments)
        module.validate_parsed_serve_args(parsed)
        engine_args = AsyncEngineArgs.from_cli_args(parsed)
        return engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)

    return vllm.__version__, build


def first(names: tuple[str, ...]) -> Any:
    for name in names[:-1]:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    return import_module(names[-1])


def refuse(message: str) -> NoReturn:
    raise RefusedError(message)


def answer(
    build: Callable[[list[str]], Any], arguments: list[str], chats: list[Any]
) -> dict[str, Any]:
    try:
        config = build(arguments)
    except SystemExit as end:  # --help and the like
        return {"ok": False, "error": f"vllm serve would end at once (exit status {end.code})"}
    except Exception as error:  # noqa: BLE001  (whatever vLLM raises is its verdict)
        return {"ok": False, "error": said(error)}
    facts = {name: fact(walk, config, path) for name, path in FACTS.items()}
    told = {"ok": True, "facts": {**facts, "sampling": fact(sampling, config)}}
    return {**told, "tokens": lengths(config, chats)} if chats else told


def lengths(config: Any, chats: list[Any]) -> list[int] | None:
    """Tokens of each conversation as the server would render it; None: it cannot be told."""
    try:
        made = next(
            module.cached_tokenizer_from_config
            for module in map(optional, TOKENIZERS)
            if hasattr(module, "cached_tokenizer_from_config")
        )
        tokenizer = made(config.model_config)
        options = {"tokenize": True, "add_generation_prompt": True, "return_dict": False}
        return [len(tokenizer.apply_chat_template(chat, **options)) for chat in chats]
    except Exception as error:  # noqa: BLE001  (it is a service, not a verdict)
        print(f"prompts cannot be counted: {said(error)}", file=sys.stderr)
        return None


def optional(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None


def said(error: Exception) -> str:
    """The message; of a pydantic error the messages without its frame."""
    errors = getattr(error, "errors", None)
    if callable(errors):
        found = errors(include_url=False, include_input=False, include_context=False)
        return "; ".join(
            ".".join(map(str, e["loc"])) + (": " if e["loc"] else "")
            + e["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            for e in found
        )  # fmt: skip
    if isinstance(error, RefusedError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def fact(read: Callable[..., Any], *of: Any) -> Any:
    """None where vLLM raises in place of telling: what it has accepted stays accepted."""
    try:
        return read(*of)
    except Exception as error:  # noqa: BLE001  (it is a service, not a verdict)
        print(f"not told: {said(error)}", file=sys.stderr)
        return None


def walk(config: Any, path: str) -> Any:
    """None where this version has no such field."""
    for name in path.split("."):
        config = getattr(config, name, None)
    return plain(config)


def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def sampling(config: Any) -> dict[str, Any] | None:
    """Sampling parameters a request gets unless it says otherwise; None: vLLM does not tell."""
    tells = getattr(config.model_config, "get_diff_sampling_param", None)
    found = tells() if callable(tells) else None
    return {str(k): plain(v) for k, v in found.items()} if isinstance(found, dict) else None


if __name__ == "__main__":
    main()
