# SPDX-License-Identifier: Apache-2.0
"""Runs for a long time and looks for what only time shows: memory that grows, ranks that drift
apart, numbers that get lost. A policy changes method, level and route all the while, states are
saved and loaded into new sessions, and now and then a gradient holds a NaN.

    make soak
    .venv/bin/python tools/soak.py --lockstep 2000 --processes 200

Exits with 1 if memory grows, ranks differ, something is lost, or a process does not end well.
"""

import argparse
import multiprocessing
import os
import resource
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

import tidegate
from tidegate import Choice, _core
from tidegate.policies import Policy

RANKS = 3
LAYERS = [[("a", 2400, 40), ("b", 40, 0)], [("c", 600, 20)], [("d", 5000, 50), ("e", 7, 0)]]
REPORTS = 20  # lines of progress
WARM_UP = 0.25  # share of a run after which memory should have settled
MOST_GROWTH = 4.0  # MB from then on to the end
ROUNDING = 1e-7  # of a gradient's size: what a step may lose to it

# Only methods that keep what they do not send: then all that came in is delivered or waits.
WAYS = [
    Choice("topk", ratio=0.05, route="allgather"),
    Choice("int8", route="owner"),
    Choice("dense", route="ring"),
    Choice("topk", ratio=0.01, route="owner"),
    Choice("powersgd", rank=2, route="tree"),
    Choice("artopk-star", ratio=0.02, route="ring"),
    Choice("lwtopk", ratio=0.1),
    Choice("int4", route="allgather"),
    Choice("onebit"),
    Choice("sidco", ratio=0.03),
    Choice("powersgd", rank=1),
    Choice("dense"),
    Choice("artopk-var", ratio=0.05),
    Choice("mstopk", ratio=0.02),
]


def way(step: int, bucket: int) -> Choice:
    """Another for every bucket every few steps, the same on all ranks."""
    return WAYS[(step // 3 + 5 * bucket) % len(WAYS)]


def restless(question) -> Choice:
    return way(question.step, question.bucket)


def megabytes() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


@dataclass
class Memory:
    """What a process takes, over time."""

    samples: list[tuple[int, float]] = field(default_factory=list)

    def note(self, step: int) -> None:
        self.samples.append((step, megabytes()))

    def growth(self) -> tuple[float, float]:
        """MB from the end of the warm-up to the end, along a straight line; and its slope, in kB
        per 1000 steps."""
        settled = self.samples[int(WARM_UP * len(self.samples)) :]
        steps = torch.tensor([float(step) for step, _ in settled], dtype=torch.float64)
        taken = torch.tensor([taken for _, taken in settled], dtype=torch.float64)
        off = steps - steps.mean()
        slope = float((off * (taken - taken.mean())).sum() / (off * off).sum().clamp(min=1e-9))
        return slope * float(steps[-1] - steps[0]), 1e6 * slope


# --- N ranks in one thread ---


class Lockstep:
    def __init__(self):
        self.sessions = self.make_sessions()
        sizes = [sum(elements for _, elements, _ in layers) for layers in LAYERS]
        generator = torch.Generator().manual_seed(1)
        # A few gradients, again and again: making them anew would take longer than averaging them.
        self.pool = [
            [[torch.randn(n, generator=generator) for n in sizes] for _ in range(RANKS)]
            for _ in range(7)
        ]
        self.buffers = [[torch.empty(n) for n in sizes] for _ in range(RANKS)]
        self.given = [torch.zeros(n, dtype=torch.float64) for n in sizes]
        self.delivered = [torch.zeros(n, dtype=torch.float64) for n in sizes]
        self.skipped = self.resumed = 0

    @staticmethod
    def make_sessions() -> list:
        policy = Policy("restless", own=restless)
        sessions = []
        for rank, own in enumerate(policy.adapters(RANKS)):
            sessions.append(_core.Session(rank, RANKS, "restless", {}, own=own))
            for bucket, layers in enumerate(LAYERS):
                sessions[-1].lay_out(bucket, layers)
        return sessions

    def step(self, step: int) -> None:
        lost = step % 997 == 500
        gradients = self.pool[step % len(self.pool)]
        for rank, session in enumerate(self.sessions):
            for bucket, buffer in enumerate(self.buffers[rank]):
                buffer.copy_(gradients[rank][bucket])
                if lost and rank == 1 and bucket == 0:
                    buffer[3] = torch.nan
                last = bucket == len(LAYERS) - 1
                session.submit(buffer.data_ptr(), buffer.nbytes, last=last)
        _core.run_lockstep(self.sessions)
        for bucket, mean in enumerate(self.buffers[0]):
            for rank in range(1, RANKS):
                same = mean.view(torch.int32).equal(self.buffers[rank][bucket].view(torch.int32))
                if not same:
                    raise SystemExit(f"step {step}: ranks 0 and {rank} differ in bucket {bucket}")
            given = torch.stack([gradients[rank][bucket].double() for rank in range(RANKS)])
            if lost and bucket == 0:
                given[1][3] = 0  # what was NaN there never came in
            # Of a step that is lost, dense keeps nothing; all others keep everything.
            if not lost or way(step, bucket).method != "dense":
                self.given[bucket] += given.mean(0)
            if not lost:
                self.delivered[bucket] += mean.double()
        self.skipped += lost

    def go_through_a_checkpoint(self) -> None:
        saved = [session.state().to_bytes() for session in self.sessions]
        self.sessions = self.make_sessions()
        for session, state in zip(self.sessions, saved, strict=True):
            session.load(_core.State.from_bytes(state))
        self.resumed += 1

    def loss(self) -> float:
        """The largest difference of what came in to what was delivered or waits, in units of a
        gradient's standard deviation."""
        states = [session.state() for session in self.sessions]
        worst = 0.0
        for bucket, layers in enumerate(LAYERS):
            waiting, at = torch.zeros_like(self.given[bucket]), 0
            for name, elements, _ in layers:
                for state in states:
                    kept = bytearray(state.residual(name))
                    if kept:
                        values = torch.frombuffer(kept, dtype=torch.float32)
                        waiting[at : at + elements] += values.double() / RANKS
                at += elements
            gap = self.given[bucket] - self.delivered[bucket] - waiting
            worst = max(worst, float(gap.abs().max()))
        return worst


def soak_lockstep(steps: int) -> list[str]:
    torch.set_num_threads(1)
    job, memory, began = Lockstep(), Memory(), time.monotonic()
    for step in range(steps):
        job.step(step)
        if step % 250 == 249:
            job.go_through_a_checkpoint()
        if step % max(1, steps // 100) == 0:
            memory.note(step)
        if (step + 1) % max(1, steps // REPORTS) == 0:
            seconds = time.monotonic() - began
            print(f"  {step + 1:7} steps {seconds:7.0f} s {megabytes():8.1f} MB", flush=True)
    grown, slope = memory.growth()
    loss = job.loss()
    print(
        f"lockstep, {RANKS} ranks: {steps} steps, {len(WAYS)} ways, {job.resumed} checkpoints, "
        f"{job.skipped} lost steps; memory {grown:+.2f} MB after warm-up ({slope:+.2f} kB per 1000 "
        f"steps); ranks equal in every step; lost at most {loss:.1e} of a gradient"
    )
    broken = [] if grown < MOST_GROWTH else [f"memory grows by {grown:.1f} MB in lockstep"]
    bound = 1e-4 + ROUNDING * steps
    return broken + ([] if loss < bound else [f"{loss} of a gradient is lost"])


# --- real processes ---


def digest_of(model) -> int:
    return hash(tuple(p.detach().view(torch.int32).sum().item() for p in model.parameters()))


def train(rank: int, ranks: int, port: int, steps: int, folder: str, pipe) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=120),
    )
    torch.manual_seed(0)
    layers = torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10)
    model = DDP(torch.nn.Sequential(*layers), bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    handle = tidegate.attach(model, optimizer, policy=restless, timeout=120)
    memory = Memory()
    generator = torch.Generator().manual_seed(rank)
    apart = 0
    began = time.monotonic()
    for step in range(steps):
        inputs = torch.randn(8, 32, generator=generator)
        targets = torch.randint(0, 10, (8,), generator=generator)
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if step % max(1, steps // 50) == 0:
            digests = [None] * ranks
            dist.all_gather_object(digests, digest_of(model))
            apart += len(set(digests)) > 1
            memory.note(step)
        if step % max(10, steps // 10) == steps // 20:
            tidegate.save(handle, folder, {"model": model.state_dict()})
            tidegate.load(handle, folder)
        if rank == 0 and (step + 1) % max(1, steps // REPORTS) == 0:
            seconds = time.monotonic() - began
            print(f"  {step + 1:7} steps {seconds:7.0f} s {megabytes():8.1f} MB", flush=True)
    handle.detach()
    pipe.send((memory.growth(), apart, memory.samples[-1][1]))
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def received(pipe):
    """What a rank has to tell; None of one that died before."""
    try:
        return pipe.recv()
    except EOFError:
        return None


def bad_ends(outcomes: list, exit_codes: list[int]) -> list[str]:
    """Of ranks that did not come to their end, or not well."""
    return [
        f"rank {rank} ended with exit code {code}"
        + (" before its last step" if outcome is None else "")
        for rank, (outcome, code) in enumerate(zip(outcomes, exit_codes, strict=True))
        if outcome is None or code != 0
    ]


def soak_processes(steps: int, ranks: int = 2) -> list[str]:
    context = multiprocessing.get_context("spawn")
    port, pipes, processes = free_port(), [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            arguments = rank, ranks, port, steps, folder, theirs
            processes.append(context.Process(target=train, args=arguments))
            processes[-1].start()
            theirs.close()
            pipes.append(ours)
        outcomes = [received(pipe) for pipe in pipes]
        for process in processes:
            process.join()
    exit_codes = [process.exitcode for process in processes]
    broken = bad_ends(outcomes, exit_codes)
    if None in outcomes:
        return broken
    grown = max(growth for (growth, _), _, _ in outcomes)
    slope = max(slope for (_, slope), _, _ in outcomes)
    apart = sum(apart for _, apart, _ in outcomes)
    print(
        f"processes, {ranks} ranks: {steps} steps, {len(WAYS)} ways; memory {grown:+.2f} MB after "
        f"warm-up ({slope:+.2f} kB per 1000 steps), {outcomes[0][2]:.0f} MB at the end; ranks "
        f"{'differ' if apart else 'equal'}; exit codes {exit_codes}"
    )
    if grown >= MOST_GROWTH:
        broken.append(f"memory grows by {grown:.1f} MB in processes")
    return broken + (["ranks drift apart"] if apart else [])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--lockstep", type=int, default=100_000, metavar="STEPS")
    parser.add_argument("--processes", type=int, default=10_000, metavar="STEPS")
    options = parser.parse_args()
    broken = soak_lockstep(options.lockstep) if options.lockstep else []
    broken += soak_processes(options.processes) if options.processes else []
    for rule in broken:
        print(f"MUST NOT BE: {rule}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
