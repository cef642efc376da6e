# SPDX-License-Identifier: Apache-2.0
"""Runs a function on N ranks, each a real process with a gloo group.

The processes are forked from a server that has torch loaded already, so that a run takes a fraction
of a second instead of one import of torch per rank.
"""

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait

import torch.distributed as dist

import tidegate

_context = multiprocessing.get_context("forkserver")
# torch._dynamo: DDP imports it late, which takes seconds in every process.
_context.set_forkserver_preload(["torch", "torch.distributed", "torch._dynamo", "tidegate"])


@dataclass
class Outcome:
    """How one rank ended."""

    result: object = None
    kind: str | None = None  # of the tidegate.Error it raised, or the name of another exception
    text: str = ""
    exit_code: int | None = None
    seconds: float = 0.0  # from its start to its end


def _send(pipe, message):
    # Plainly pickled: torch would pass tensors through shared memory that ends with the sender.
    pipe.send_bytes(pickle.dumps(message))


def _child(body, rank, ranks, folder, args, pipe):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=60),
    )
    try:
        _send(pipe, (body(rank, ranks, *args), None, ""))
    except tidegate.Error as error:
        _send(pipe, (None, error.kind, str(error)))
        raise SystemExit(3) from None  # ends as a script does that does not catch the error
    except Exception as error:
        _send(pipe, (None, type(error).__name__, traceback.format_exc()))
        raise SystemExit(4) from error
    else:
        dist.destroy_process_group()


def run_ranks(body, ranks: int, *args, limit: float = 60.0) -> list[Outcome]:
    """body(rank, ranks, *args) on every rank; fails if a process has not ended within `limit`."""
    outcomes = [Outcome() for _ in range(ranks)]
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        began = time.monotonic()
        for rank in range(ranks):
            ours, theirs = _context.Pipe(duplex=False)
            process = _context.Process(
                target=_child, args=(body, rank, ranks, folder, args, theirs), daemon=True
            )
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        _collect(outcomes, pipes, processes, began, limit)
    late = [rank for rank, outcome in enumerate(outcomes) if outcome.exit_code is None]
    for rank in late:
        processes[rank].kill()
    assert not late, f"ranks {late} still hang after {limit} s: {outcomes}"
    return outcomes


def _collect(outcomes, pipes, processes, began, limit):
    talking, running = set(range(len(pipes))), set(range(len(pipes)))
    while running and time.monotonic() - began < limit:
        sentinels = {processes[rank].sentinel: rank for rank in running}
        waiting = {pipes[rank]: rank for rank in talking}
        for ready in wait([*sentinels, *waiting], timeout=1.0):
            if ready in waiting:
                rank = waiting[ready]
                talking.remove(rank)
                outcome = outcomes[rank]
                try:
                    outcome.result, outcome.kind, outcome.text = pickle.loads(ready.recv_bytes())
                except EOFError:
                    outcome.kind = "died"
            else:
                rank = sentinels[ready]
                if rank in talking:
                    continue  # what it said comes first
                running.remove(rank)
                processes[rank].join()
                outcomes[rank].exit_code = processes[rank].exitcode
                outcomes[rank].seconds = time.monotonic() - began


def _one_after_another(rank, ranks, body, cases):
    return [body(rank, ranks, *case) for case in cases]


def results_of_each(body, ranks: int, cases: list[tuple], limit: float = 60.0) -> list[list]:
    """results(body, ranks, *case) of every case, in the same processes: `body` must detach."""
    by_rank = results(_one_after_another, ranks, body, cases, limit=limit)
    return [list(of_case) for of_case in zip(*by_rank, strict=True)]


def results(body, ranks: int, *args, limit: float = 60.0) -> list:
    """What every rank returned; a failure of one is a failure of the test."""
    outcomes = run_ranks(body, ranks, *args, limit=limit)
    for rank, outcome in enumerate(outcomes):
        assert outcome.kind is None, f"rank {rank}: {outcome.kind}: {outcome.text}"
        assert outcome.exit_code == 0, f"rank {rank} ended with exit code {outcome.exit_code}"
    return [outcome.result for outcome in outcomes]
