"""A recommendation as a file for `vllm serve --config`, and its environment as a shell script.

vLLM makes `--key value` of each entry: true is a bare flag, a list is several values, a mapping is
JSON. `no-x: true` is written for `--no-x`: `vllm serve` (0.32) drops `x: false` without a word,
where `python -m vllm.entrypoints.openai.api_server` honours it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from autotune.engines.arguments import read_config
from autotune.errors import ConfigurationError
from autotune.export.serve_args import (
    CONFIG,
    Option,
    dashed,
    drafts_only,
    is_value,
    served_engine_args,
    split_options,
)
from autotune.records import BASELINE, Recommendation
from autotune.wording import setting_text

SHORT = {
    "-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size",
    "-dpn": "data-parallel-rank", "-dpr": "data-parallel-start-rank",
    "-dpl": "data-parallel-size-local", "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port", "-dpb": "data-parallel-backend",
    "-dph": "data-parallel-hybrid-lb", "-dpe": "data-parallel-external-lb",
    "-dpm": "data-parallel-multi-port-external-lb", "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size", "-ep": "enable-expert-parallel", "-n": "nnodes",
    "-r": "node-rank", "-q": "quantization", "-cc": "compilation-config",
    "-ac": "attention-config", "-dc": "diffusion-config", "-asc": "api-server-count",
}  # fmt: skip
PLAIN = re.compile(r"(--?)?[A-Za-z/][\w./+-]*", re.ASCII)  # and WORDS: text to every YAML
WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
NESTED = ("-config", "-overrides", "-kwargs", "-per-prompt")  # flags whose value is JSON
REPEATED = "middleware"  # every other flag that is repeated counts once, the last time


def config_yaml(r: Recommendation) -> str:
    """`vllm serve --config FILE` with this text is the recommended `vllm serve ...`."""
    config = r.speculative_config
    engine_args, _ = served_engine_args(r)
    entries: dict[str, Any] = {"model": r.model, **config_mapping(engine_args)}
    if config is None:
        entries = {key: value for key, value in entries.items() if not drafts_only(f"--{key}")}
    else:
        entries["speculative-config"] = config
    return about(r, "vllm serve --config THIS_FILE.yaml") + as_yaml(entries)


def env_sh(r: Recommendation) -> str:
    """`. FILE` sets the variables that the measured engine was started with."""
    if r.variables is None:
        raise ConfigurationError(
            f"study {r.study} does not say which environment variables were set",
            hint="only a study of a real engine records them, since this version of spectune",
        )
    lines = [f"export {name}={shlex.quote(value)}" for name, value in r.variables.items()]
    nothing = "# none of the variables that vLLM or its libraries read was set"
    return about(r, ". THIS_FILE.sh") + "\n".join(lines or [nothing]) + "\n"


def about(r: Recommendation, usage: str) -> str:
    """A heading in comments: what this is, where it comes from, how to use it."""
    gain = f", {r.speedup.value:.2f}x" if r.speedup and r.decision == "speculate" else ""
    choice = "no speculation" if r.method == BASELINE else setting_text(r) + gain
    versions = (r.environment.gpu, r.environment.runtime)
    vllm = f"vLLM {r.environment.vllm}" if r.environment.vllm else None
    lines = [
        f"spectune study {r.study}: {r.model} on {r.workload.name}: {choice}",
        "measured with " + (", ".join(v for v in (*versions, vllm) if v) or r.engine),
        usage,
    ]
    return "".join(f"# {_one_line(line)}\n" for line in lines)


def as_yaml(document: Any) -> str:
    """Block style, ASCII only: vLLM opens the file in the locale's encoding.

    Text is quoted unless every YAML reads it as text: PyYAML (YAML 1.1) would leave `1e3` and `y`
    bare, which those of Kubernetes, Helm and the recipes' site take for a number and a boolean.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        pass

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        bare = PLAIN.fullmatch(text) and text.lower() not in WORDS
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if bare else "'")

    Dumper.add_representer(str, represent)
    text: str = yaml.dump(
        document, Dumper=Dumper, sort_keys=False, width=2**20, default_flow_style=False
    )
    return text


def config_mapping(engine_args: Sequence[str]) -> dict[str, Any]:
    """The entries of a config file that says what these arguments say, a --config file included.

    Raises ConfigurationError for what such a file cannot say.
    """
    options = split_options(engine_args)
    entries = _file(options)
    for option in options:
        if option.flag != CONFIG:
            _put(entries, _key(option.flag), option)
    return entries


def flat_arguments(r: Recommendation) -> tuple[str, ...]:
    """The user's arguments without a --config file: what stands in it comes first."""
    options = split_options(served_engine_args(r)[0])
    found: list[str] = []
    for key, value in _file(options).items():
        if r.speculative_config is not None or not drafts_only(f"--{key}"):
            found += _arguments(key, value)
    return (*found, *(t for option in options if option.flag != CONFIG for t in option.tokens))


def _arguments(key: str, value: Any) -> list[str]:
    if value is False:
        raise ConfigurationError(
            f"{key}: false in the --config file means --no-{key} to one start of vLLM and nothing"
            " to another",
            hint=f"write no-{key}: true there, and measure again",
        )
    if value is True:
        return [f"--{key}"]
    if isinstance(value, list):
        return [f"--{key}", *map(str, value)] if value else []
    return [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]


def _key(flag: str) -> str:
    if flag.startswith("--"):
        return flag.removeprefix("--")
    name, dot, part = flag.partition(".")
    if name not in SHORT:
        raise ConfigurationError(
            f"{flag} has no place in a config file: its long name is not known",
            hint="write the long form of the flag after --",
        )
    return SHORT[name] + dot + part


def _put(entries: dict[str, Any], key: str, option: Option) -> None:
    """Set one entry as vLLM would: the last one counts, `--no-x` is the opposite of `--x`."""
    if key == REPEATED and key in entries:
        raise ConfigurationError(
            "--middleware more than once has no place in a config file: a key stands there once",
            hint="use --format command",
        )
    before = entries.pop(key, None)
    entries.pop(key.removeprefix("no-") if key.startswith("no-") else f"no-{key}", None)
    if key.endswith("+") and before is not None:  # parts of a list add up
        entries[key] = f"{before},{option.values[0]}"
    else:
        entries[key] = _value(key, option)


def _value(key: str, option: Option) -> Any:
    if not option.values:
        return True
    values = [_scalar(value) for value in option.values]
    if not option.dotted and not all(is_value(str(value)) for value in values):
        raise ConfigurationError(
            f"{option.tokens[0]} has no place in a config file: its value reads as a flag there",
            hint="use --format command",
        )
    if len(values) > 1:
        return values
    text = option.values[0]
    if key.endswith(NESTED) and isinstance(nested := _json(text), dict):
        return nested
    return values[0]


def _scalar(text: str) -> str | int | float:
    """A number where it is written exactly as Python writes it: vLLM turns it into text again."""
    if re.fullmatch(r"0|-?[1-9]\d{0,17}", text):
        return int(text)
    if re.fullmatch(r"\d{1,9}\.\d{1,9}", text) and repr(float(text)) == text:
        return float(text)
    return text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _file(options: Sequence[Option]) -> dict[str, Any]:
    """What the user's own --config file says; nothing where there is none."""
    given = [option for option in options if option.flag == CONFIG]
    if not given:
        return {}
    if len(given) > 1 or len(given[0].tokens) != 2:
        raise ConfigurationError(
            "vLLM reads one config file, written as `--config FILE`: this one is not read",
            hint=f"given: {' '.join(t for option in given for t in option.tokens)}",
        )
    content = read_config(given[0].values[0])
    return {dashed(str(key)): value for key, value in content.items()}


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in text)
