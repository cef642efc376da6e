# SPDX-License-Identifier: Apache-2.0
"""One rank of the jobs that tools/faults.py breaks: a small model under a policy that changes its
mind, saved every few steps. What goes wrong, and when, is in its plan."""

import contextlib
import ctypes
import hashlib
import json
import os
import resource
import signal
import threading
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

import tidegate

STEPS = 24
SAVE_EVERY = 6
BREAK_AT = 14  # the last checkpoint is then two steps old
CLONE_NEWNET = 0x40000000


@dataclass
class Plan:
    fault: str
    victim: int
    timeout: float
    folder: str  # of the checkpoints
    notes: str  # a folder for what ranks have to tell
    address: str = "127.0.0.1"
    port: int = 0
    spaces: tuple[str, ...] = ()  # network namespaces of the ranks
    large: bool = False  # a model whose residuals take memory from step BREAK_AT on


buggy_step = None  # of the policy, on the rank that has the bug


def changing(question):
    """Method, level and route change all the while, the same on all ranks."""
    if question.step == buggy_step:
        raise ValueError("a bug in the user's policy")
    ways = (("topk", 0.1), "int8", tidegate.Choice("powersgd", rank=2), ("topk", 0.3))
    return ways[(question.step // 2 + question.bucket) % len(ways)]


def batch(rank: int, step: int):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (
        torch.randn(16, 64, generator=generator),
        torch.randint(0, 10, (16,), generator=generator),
    )


def make_model(width: int) -> DDP:
    torch.manual_seed(0)
    layers = nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    return DDP(nn.Sequential(*layers, nn.Linear(width, 10)), bucket_cap_mb=0.3)


def digest(model: nn.Module) -> str:
    sha = hashlib.sha256()
    for parameter in model.parameters():
        sha.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


class Job:
    def __init__(self, rank: int, ranks: int, plan: Plan):
        self.rank = rank
        self.plan = plan
        self.broken = rank == plan.victim
        self.handle = None
        self.resumed = 0
        self.failed_saves = []
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{plan.address}:{plan.port}",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=60),
        )

    def train(self) -> str:
        model = make_model(2000 if self.plan.large else 400)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        self.attach(model, optimizer)
        saved = tidegate.load(self.handle, self.plan.folder, missing_ok=True)
        if saved:
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            self.resumed = saved["step"]
        for step in range(self.resumed, STEPS):
            self.break_something(step)
            inputs, targets = batch(self.rank, step)
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            if (step + 1) % SAVE_EVERY == 0:
                self.save(model, optimizer, step + 1)
        return digest(model)

    def attach(self, model, optimizer) -> None:
        policy = changing
        if self.plan.large:
            policy = f"schedule:levels=0 dense;{BREAK_AT} topk 0.01"
        if self.broken and self.plan.fault == "absent":
            self.note_fault()
            time.sleep(self.plan.timeout + 3)
            raise SystemExit(0)
        if self.plan.fault == "other settings":
            self.note_fault()
            policy = "fixed:method=topk,ratio=0.1" if self.broken else "fixed:method=int8"
        self.handle = tidegate.attach(model, optimizer, policy=policy, timeout=self.plan.timeout)

    def save(self, model, optimizer, step: int) -> None:
        everything = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if self.plan.fault == "killed while saving" and step > BREAK_AT and self.broken:
            self.note_fault()
            os.fsync = lambda file: self.kill(signal.SIGKILL)  # its file is written, not durable
        if self.plan.fault == "full disk" and step > BREAK_AT:
            everything["ballast"] = torch.zeros(10**7)
            self.note_fault()
        try:
            tidegate.save(self.handle, self.plan.folder, {**everything, "step": step})
        except tidegate.Error as error:
            if self.plan.fault != "full disk":
                raise
            self.failed_saves.append(str(error))  # a careful script trains on

    def note_fault(self) -> None:
        """When it happened, for whoever counts the seconds since."""
        path = os.path.join(self.plan.notes, "fault")
        if not os.path.exists(path):
            with open(path, "w") as file:
                file.write(repr(time.monotonic()))

    def ask_for(self, what: str) -> None:
        """Of whoever has started us."""
        open(os.path.join(self.plan.notes, what), "w").close()

    def kill(self, number: int) -> None:
        self.note_fault()
        os.kill(os.getpid(), number)

    def break_something(self, step: int) -> None:
        fault = self.plan.fault
        if fault == "slow" and BREAK_AT <= step < BREAK_AT + 3:
            time.sleep(2.5 if self.broken else 0.25)
        if step != BREAK_AT or self.resumed:
            return
        if fault == "interrupt" and self.rank == 0:
            self.ask_for("interrupt")
        if not self.broken:
            return
        if fault == "kill":
            self.kill(signal.SIGKILL)
        if fault == "stop":
            self.kill(signal.SIGSTOP)
        if fault == "raise":
            self.note_fault()
            raise ValueError("a bug in the user's script")
        if fault == "caught":
            self.note_fault()
            global buggy_step
            buggy_step = step
        if fault == "cut":
            self.note_fault()
            self.ask_for("cut")
            time.sleep(0.5)
        if fault == "corrupt":
            self.flip_a_bit()
        if fault == "memory":
            self.starve()

    def flip_a_bit(self) -> None:
        """In the next message that this rank receives."""
        engine = self.handle._engine
        start = engine.start

        def started(issue):
            operation = start(issue)
            if issue.target_bytes:
                done = operation.done

                def damaged(patience):
                    arrived = done(patience)
                    if arrived:
                        # In the last rank's message, behind its header.
                        ctypes.c_uint8.from_address(
                            issue.target + issue.target_bytes // 2 + 80
                        ).value ^= 4
                        self.note_fault()
                        engine.start, operation.done = start, done
                    return arrived

                operation.done = damaged
            return operation

        engine.start = started

    def starve(self) -> None:
        """No more memory for whoever asks for much of it in the exchange thread."""
        submit = self.handle._submit

        def starved(*bucket):
            self.note_fault()
            with open("/proc/self/status") as file:
                used = next(line.split()[1] for line in file if line.startswith("VmData"))
            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (int(used) * 1024, hard))
            try:
                submit(*bucket)
                self.handle._issue()
            finally:
                resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

        self.handle._submit = starved


def enter(space: str) -> None:
    with open(f"/run/netns/{space}") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")


def run(rank: int, ranks: int, plan: Plan) -> None:
    """A rank from its start to its end. Leaves what it has to tell in a file: the process may end
    in any way."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0" if plan.spaces else "lo"
    if plan.spaces:
        enter(plan.spaces[rank])
    said = {"kind": None, "text": "", "exit": 0}
    job = None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            job = Job(rank, ranks, plan)
            said["digest"] = job.train()
        except tidegate.Error as error:
            said.update(kind=error.kind, text=str(error), exit=3)
        except SystemExit:
            said["exit"] = 0
        except BaseException as error:
            notes = " ".join(getattr(error, "__notes__", []))
            said.update(kind=type(error).__name__, text=f"{error} {notes}".strip(), exit=4)
        said["at"] = time.monotonic()
        with contextlib.suppress(tidegate.Error):
            if job and job.handle:
                job.handle.detach()
    said["warnings"] = [str(w.message) for w in warned if "tidegate: " in str(w.message)]
    if job:
        said["resumed"] = job.resumed
        said["failed_saves"] = job.failed_saves
    said["threads"] = [t.name for t in threading.enumerate() if t.name.startswith("tidegate")]
    with open(os.path.join(plan.notes, f"rank-{rank}"), "w") as file:
        json.dump(said, file)
    if plan.fault == "caught" and job and job.broken:
        time.sleep(plan.timeout)  # stays alive, so that no connection breaks
    if not said["exit"] and dist.is_initialized():
        dist.destroy_process_group()
    raise SystemExit(said["exit"])
