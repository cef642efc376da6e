# SPDX-License-Identifier: Apache-2.0
"""A small GPT that learns English character by character: 0.8 million parameters, AdamW."""

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from .characters import Text, next_character_loss
from .task import Task, decay

WARM_UP = 20  # steps; Adam's first ones are as large as any


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.before_hidden = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, 4 * width)
        self.output = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.queries_keys_values(x).view(batch, length, 3, self.heads, -1)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.attended(found.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attend(self.before_attention(x)))
        return x + self.dropout(self.output(gelu(self.hidden(self.before_hidden(x)))))


class CharGpt(nn.Module):
    def __init__(
        self, alphabet: int, length: int, width: int, heads: int, blocks: int, dropout: float
    ):
        super().__init__()
        self.characters = nn.Embedding(alphabet, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(blocks))
        self.after = nn.LayerNorm(width)
        self.scores = nn.Linear(width, alphabet, bias=False)
        for table in (self.characters, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        x = self.characters(characters) + self.places.weight[: characters.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.scores(self.after(x))


def make_task(
    seed: int = 0,
    steps: int | None = None,
    batch: int = 8,
    length: int = 64,
    width: int = 128,
    heads: int = 4,
    blocks: int = 4,
    dropout: float = 0.1,
    lr: float = 3e-3,
) -> Task:
    """`batch` windows of `length` characters per worker and step. With `steps`, the learning rate
    comes up over the first few and goes down to zero over the second half of them."""
    text = Text(length, batch, seed)
    torch.manual_seed(seed)
    model = CharGpt(text.alphabet, length, width, heads, blocks, dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.1)
    return Task(
        model,
        optimizer,
        text.batches,
        next_character_loss,
        text.evaluate,
        decay(optimizer, steps, WARM_UP),
        name="char-gpt",
        figure="bits_per_character",
        lower_is_better=True,
    )
