"""Counting stories: a small language that a model of a million parameters learns in a minute."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

VOCABULARY = 512
SPECIAL = ("<pad>", "<s>", "</s>", "<mask>")
PAD, BOS, EOS, MASK = range(len(SPECIAL))
PEOPLE = ("Ana", "Bela", "Cleo", "Dario", "Edda", "Femi", "Goran", "Hiro", "Ines", "Juri")
THINGS = ("figs", "stamps", "shells", "marbles", "ropes", "candles", "seeds")
GAINS = ("picks up {}", "is handed {}", "wins {}")
LOSSES = ("drops {}", "hands over {}", "uses up {}")
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def story(chance: random.Random) -> tuple[str, str]:
    """(question, answer): who has what, three or four events, then the same step by step."""
    who, what, count = chance.choice(PEOPLE), chance.choice(THINGS), chance.randint(20, 70)
    told, solved = [f"{who} has {count} {what}."], []
    for _ in range(chance.randint(3, 4)):
        change, gain = chance.randint(2, 9), chance.random() < 0.5
        event = chance.choice(GAINS if gain else LOSSES).format(change)
        after = count + change if gain else count - change
        told.append(f"{who} {event}.")
        sign = "+" if gain else "-"
        solved.append(f" {who} {event}: {count} {sign} {change} = {after} {what}.")
        count = after
    return " ".join(told) + " Count:", "".join(solved) + f" In the end {who} has {count} {what}."


def questions(count: int, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [story(chance)[0] for _ in range(count)]


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits, so that sums can be learned; chat joins the contents."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    chance = random.Random(1)
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    pieces.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator(["".join(story(chance)) for _ in range(3000)], trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        mask_token="<mask>",
    )
    made.chat_template = TEMPLATE
    return made


def batches(
    words: PreTrainedTokenizerFast, rows: int, columns: int, seed: int
) -> Iterator[torch.Tensor]:
    """Endless token ids, shape (rows, columns): stories one after another, each ended by EOS."""
    import torch

    chance, stream = random.Random(seed), list[int]()
    while True:
        while len(stream) < rows * columns:
            texts = ["".join(story(chance)) for _ in range(64)]
            for ids in words(texts)["input_ids"]:
                stream += [*ids, EOS]
        yield torch.tensor(stream[: rows * columns]).view(rows, columns)
        del stream[: rows * columns]
