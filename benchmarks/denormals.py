# SPDX-License-Identifier: Apache-2.0
"""Whether steps take longer when gradients are denormal, below 1.2e-38: every method averages
normal numbers, denormal ones and a mixture, in turn in one process; CPU time against normal ones.

    .venv/bin/python benchmarks/denormals.py
"""

import statistics
import time

import torch

from tidegate import _core

ELEMENTS = 1 << 20
RANKS = 2
ROUNDS = 12


class Job:
    def __init__(self, options: dict[str, str], gradients: torch.Tensor):
        self.gradients = gradients
        self.buffers = gradients.clone()
        self.sessions = [_core.Session(rank, RANKS, "fixed", options) for rank in range(RANKS)]
        for session in self.sessions:
            session.lay_out(0, [("layer", ELEMENTS, 1024)])
        self.seconds = []

    def step(self) -> None:
        self.buffers.copy_(self.gradients)
        for session, buffer in zip(self.sessions, self.buffers, strict=True):
            session.submit(buffer.data_ptr(), buffer.nbytes)
        before = time.thread_time()
        _core.run_lockstep(self.sessions)
        self.seconds.append(time.thread_time() - before)

    def typical(self) -> float:
        """Of the faster half: the rest was disturbed."""
        return statistics.median(sorted(self.seconds)[: ROUNDS // 2])


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    normal = torch.randn(RANKS, ELEMENTS)
    tiny = normal * 1e-40
    mixed = torch.where(torch.rand(RANKS, ELEMENTS) < 0.5, tiny, normal)
    print(f"{'method':12} {'normal':>10} {'denormal':>9} {'mixed':>9}")
    for row in _core.methods():
        level = {"ratio": {"ratio": "0.01"}, "rank": {"rank": "2"}}.get(row["level"], {})
        jobs = [Job({"method": row["name"], **level}, each) for each in (normal, tiny, mixed)]
        for _ in range(ROUNDS):
            for job in jobs:
                job.step()
        usual, *others = (job.typical() for job in jobs)
        ratios = " ".join(f"{other / usual:8.2f}x" for other in others)
        print(f"{row['name']:12} {1e3 * usual:7.2f} ms {ratios}", flush=True)


if __name__ == "__main__":
    main()
