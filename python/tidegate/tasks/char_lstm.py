# SPDX-License-Identifier: Apache-2.0
"""An LSTM that learns English character by character: 0.35 million parameters.

SGD with momentum and a clipped gradient, as LSTMs were trained before Adam: char-gpt has AdamW
already, and clipping looks at the norm of the averaged gradient, which compression changes.
"""

import torch
from torch import nn

from .characters import Text, next_character_loss
from .task import Task, decay


class CharLstm(nn.Module):
    def __init__(self, alphabet: int, embedded: int, width: int, dropout: float):
        super().__init__()
        self.characters = nn.Embedding(alphabet, embedded)
        self.lstm = nn.LSTM(embedded, width, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.scores = nn.Linear(width, alphabet)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.characters(characters))
        return self.scores(self.dropout(states))


def make_task(
    seed: int = 0,
    steps: int | None = None,
    batch: int = 16,
    length: int = 64,
    embedded: int = 64,
    width: int = 256,
    dropout: float = 0.1,
    lr: float = 2.0,
    momentum: float = 0.9,
    clip: float = 0.25,
) -> Task:
    """`batch` windows of `length` characters per worker and step; the state starts from zero in
    each. With `steps`, the learning rate goes down to zero over the second half of them."""
    text = Text(length, batch, seed)
    torch.manual_seed(seed)
    model = CharLstm(text.alphabet, embedded, width, dropout)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)

    def clip_gradient(model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)

    return Task(
        model,
        optimizer,
        text.batches,
        next_character_loss,
        text.evaluate,
        decay(optimizer, steps),
        name="char-lstm",
        before_step=clip_gradient,
        figure="bits_per_character",
        lower_is_better=True,
    )
