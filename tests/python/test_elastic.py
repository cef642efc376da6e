# SPDX-License-Identifier: Apache-2.0
"""A rank is killed; torchelastic restarts the job, which goes on from its last checkpoint; then it
goes on with one rank more. examples/resume.py is that job."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from ranks import results

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/resume.py"
STEPS, EVERY = 24, 5
KILLED_AT = 13  # so that three steps are taken again

# Runs the example; rank 1 is killed in the midst of a step the first time.
WORKER = f"""
import os, runpy, signal, sys, torch
step = torch.optim.SGD.step
taken = 0

def killed(optimizer, *args, **kwargs):
    global taken
    taken += 1
    if taken == {KILLED_AT} and os.environ["RANK"] == "1" and torch_elastic_count() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(optimizer, *args, **kwargs)

def torch_elastic_count():
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])

torch.optim.SGD.step = killed
torch.set_num_threads(1)
runpy.run_path("{EXAMPLE}", run_name="__main__")
"""


def losses_of(text: str) -> list[tuple[int, float]]:
    return [(int(step), float(loss)) for step, loss in re.findall(r"step (\d+) loss (\S+)", text)]


def train(rank, ranks, folder, steps):
    specification = importlib.util.spec_from_file_location("resume", EXAMPLE)
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    return example.train(folder, steps, EVERY)


def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    folder = str(tmp_path / "checkpoints")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        + ["--max-restarts", "1", worker, "--folder", folder]
        + ["--steps", str(STEPS), "--every", str(EVERY)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    told = losses_of(done.stdout)
    restart = [step for step, _ in told].index(
        KILLED_AT // EVERY * EVERY, KILLED_AT // EVERY * EVERY + 1
    )
    before, after = told[:restart], told[restart:]
    assert before[-1][0] in (KILLED_AT - 2, KILLED_AT - 1)  # rank 0 may be told before it says it
    assert [step for step, _ in after] == list(range(10, STEPS))
    # What was taken again, and what follows, is what it would have been without the kill.
    undisturbed = results(train, 2, str(tmp_path / "undisturbed"), STEPS)[0]
    assert [loss for _, loss in after] == undisturbed[10:]
    assert [loss for _, loss in before] == undisturbed[: len(before)]

    # One rank more: the step counts on, and the loss goes on where it was.
    onwards = results(train, 3, folder, STEPS + 16)
    assert len(onwards[0]) == STEPS + 16 - STEPS // EVERY * EVERY
    mean = sum(map(sum, onwards)) / sum(map(len, onwards))
    assert mean < 1.1 * sum(undisturbed[-8:]) / 8
    assert max(of_rank[0] for of_rank in onwards) < 2 * max(undisturbed[-8:])
