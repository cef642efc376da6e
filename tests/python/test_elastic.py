# SPDX-License-Identifier: Apache-2.0
"""A rank is killed; torchelastic restarts the job, which goes on from its last checkpoint; then it
goes on with one rank more. examples/resume.py is that job.

The agent is torchrun's, as a function, with workers that are forked from a server that has torch
loaded already (see ranks.py).
"""

import importlib.util
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import results
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

EXAMPLE = Path(__file__).parents[2] / "examples/resume.py"
STEPS, EVERY = 24, 5
KILLED_AT = 13
LAST_SAVED = 10


def train(rank, ranks, folder, steps):
    specification = importlib.util.spec_from_file_location("resume", EXAMPLE)
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    return example.train(folder, steps, EVERY)


def worker(folder):
    """Rank 1 is killed in the midst of a step the first time. Returns the attempt and losses."""
    torch.set_num_threads(1)
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
    step, taken = torch.optim.SGD.step, 0

    def killed(optimizer, *args, **kwargs):
        nonlocal taken
        taken += 1
        if (attempt, rank, taken) == (0, 1, KILLED_AT):
            os.kill(os.getpid(), signal.SIGKILL)
        return step(optimizer, *args, **kwargs)

    torch.optim.SGD.step = killed
    dist.init_process_group("gloo")
    losses = train(rank, 2, folder, STEPS)
    dist.destroy_process_group()
    return attempt, losses


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # Or workers may find the addresses of those before the restart (docs/CHECKPOINTS.md).
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")


def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint(tmp_path, environment):
    folder = str(tmp_path / "checkpoints")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=3,
        monitor_interval=0.1,
        start_method="forkserver",
    )
    # In a thread of its own it leaves this process's signals alone.
    with ThreadPoolExecutor(1) as thread:
        outcomes = thread.submit(elastic_launch(config, worker), folder).result()
    # What was taken again, and what follows, is what it would have been without the kill.
    undisturbed = results(train, 2, str(tmp_path / "undisturbed"), STEPS)
    for rank in range(2):
        attempt, losses = outcomes[rank]
        assert attempt > 0
        assert losses == undisturbed[rank][LAST_SAVED:]

    # One rank more: the step counts on, and the loss goes on where it was.
    onwards = results(train, 3, folder, STEPS + 16)
    again = STEPS // EVERY * EVERY
    assert [len(losses) for losses in onwards] == [STEPS + 16 - again] * 3
    latest = [loss for losses in undisturbed for loss in losses[-8:]]
    assert max(losses[0] for losses in onwards) < 2 * max(latest)
    assert sum(map(sum, onwards)) / sum(map(len, onwards)) < 1.1 * sum(latest) / len(latest)
