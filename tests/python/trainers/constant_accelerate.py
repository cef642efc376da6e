# SPDX-License-Identifier: Apache-2.0
"""A job of constant gradients that Accelerate trains, saves and resumes; see constant_jobs.py."""

import torch
from accelerate import Accelerator
from constant_job import Constant, noise
from constant_jobs import HALF, OPTIONS, Outcome, arrived, main

from tidegate.trainers.accelerate import attach


class Job:
    def __init__(self):
        self.accelerator = Accelerator(cpu=True)
        self.constant = Constant()
        optimizer = torch.optim.SGD(self.constant.parameters(), lr=1.0)
        self.model, self.optimizer = self.accelerator.prepare(self.constant, optimizer)
        self.handle = attach(self.accelerator, self.model, self.optimizer, **OPTIONS)

    def train(self, rank: int, steps: range) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            self.accelerator.backward(self.model(noise(step, rank)))
            self.optimizer.step()


def train(rank: int, ranks: int, folder: str) -> Outcome:
    first = Job()
    first.train(rank, range(HALF))
    before = arrived(first.constant, HALF, ranks)
    first.accelerator.save_state(folder)
    second = Job()
    second.accelerator.load_state(folder)
    second.train(rank, range(HALF, 2 * HALF))
    if second.handle.flush():
        second.optimizer.step()
    return Outcome(second.constant, before, [first.handle.stats(), second.handle.stats()])


if __name__ == "__main__":
    main(train)
