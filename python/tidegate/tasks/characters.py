# SPDX-License-Identifier: Apache-2.0
"""Predicting the next character of English text: what the tasks of that kind share."""

import functools
import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from .. import king_james
from .task import Batches

Batch = tuple[torch.Tensor, torch.Tensor]  # characters, and those that follow
HELD_OUT = 20  # one part in so many, the last one, is never trained on
EVALUATED = 512  # windows of the held-out text
EVALUATED_AT_ONCE = 64


@functools.cache
def encoded_text() -> tuple[torch.Tensor, int]:
    """Every character as its number in the alphabet, and the size of the alphabet."""
    text = king_james.load()
    alphabet = sorted(set(text))
    numbers = bytes(range(len(alphabet)))
    table = bytes.maketrans("".join(alphabet).encode("ascii"), numbers)
    encoded = bytearray(text.encode("ascii").translate(table))
    return torch.frombuffer(encoded, dtype=torch.uint8), len(alphabet)


class Text:
    """Windows of `length` characters, each with the characters that follow them."""

    def __init__(self, length: int, batch: int, seed: int):
        text, self.alphabet = encoded_text()
        split = len(text) - len(text) // HELD_OUT
        self._length, self._batch, self._seed = length, batch, seed
        self._train, self._test = text[:split], text[split:]

    def batches(self, worker: int, workers: int, epoch: int) -> Batches:
        """All of the text that is trained on, cut anew into windows in every epoch."""
        generator = torch.Generator().manual_seed(1000 * self._seed + epoch)
        offset = int(torch.randint(self._length, (), generator=generator))
        windows = (len(self._train) - offset - 1) // self._length
        starts = offset + self._length * torch.randperm(windows, generator=generator)
        mine = starts[worker::workers].split(self._batch)
        return Batches(
            windows // workers // self._batch,
            lambda i: _windows(self._train, mine[i], self._length),
        )

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On windows spread evenly over the held-out text."""
        room = len(self._test) - self._length - 1
        starts = torch.linspace(0, room, EVALUATED).long()
        losses = [
            float(next_character_loss(model, _windows(self._test, part, self._length)))
            for part in starts.split(EVALUATED_AT_ONCE)
        ]
        loss = sum(losses) / len(losses)
        return {
            "bits_per_character": loss / math.log(2),
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
        }


def _windows(text: torch.Tensor, starts: torch.Tensor, length: int) -> Batch:
    at = starts[:, None] + torch.arange(length + 1)
    characters = text[at].long()
    return characters[:, :-1], characters[:, 1:]


def next_character_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    scores = model(batch[0])
    return cross_entropy(scores.flatten(0, 1), batch[1].flatten())
