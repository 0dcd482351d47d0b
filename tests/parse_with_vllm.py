"""Run by test_vllm_export.py with vLLM's interpreter: what vLLM's own `serve` parser understands.

stdin: a JSON list of word lists, each beginning with "serve". stdout: for each, one sorted list of
[name, repr(value)]. Where the words come from does not count: model_tag becomes model, as
`vllm serve` does it.
"""

import json
import sys

from vllm.entrypoints.cli import serve
from vllm.utils.argparse_utils import FlexibleArgumentParser

FROM = ("config", "model_tag", "dispatch_function")


def understood(words):
    parser = FlexibleArgumentParser()
    commands = parser.add_subparsers(required=False, dest="subparser")
    for command in serve.cmd_init():
        command.subparser_init(commands).set_defaults(dispatch_function=command.cmd)
    found = vars(parser.parse_args(words))
    found["model"] = found.get("model_tag") or found["model"]
    return sorted([name, repr(value)] for name, value in found.items() if name not in FROM)


if __name__ == "__main__":
    answers = [understood(words) for words in json.load(sys.stdin)]
    print("answers:" + json.dumps(answers))
