# SPDX-License-Identifier: Apache-2.0
"""Collectives through torch.distributed, on a gloo group of their own.

A group of its own, because DDP and the user go on using theirs from other threads, and two threads
that share a group cannot agree with the other ranks on an order.
"""

import collections
import contextlib
import ctypes
import os
import pickle
import re
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from . import _core
from .errors import Error

if TYPE_CHECKING:
    from .lookout import Lookout

DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "uint8": torch.uint8,
}
PROMPT = 0.1  # of what a collective took: noticed later than this, an arrival says little about it
ASIDES = "asides"  # a group for what ranks tell each other beside the collectives of steps
ASIDE_BYTES = 512
FEW_PROCESSORS = 1  # for each rank, or less: training and exchanges take them from each other
LOWEST_PRIORITY = 19
STEP_OF_WAIT = 0.2  # seconds; how soon a waiting thread notices that it should stop

# How often the ranks of a process group have met to attach something: the same on all of them.
_MEETINGS: "weakref.WeakKeyDictionary[dist.ProcessGroup, int]" = weakref.WeakKeyDictionary()

Link = str | _core.LinkSchedule  # what to emulate: "100mbit,2ms", or a link that changes by step


def host_name() -> str:
    """Equal on ranks that share a machine; the user may declare another in TIDEGATE_HOST."""
    declared = os.environ.get("TIDEGATE_HOST")
    if declared:
        return declared
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{socket.gethostname()} {file.read().strip()}"
    except OSError:
        return socket.gethostname()


def processors_of(places: list[tuple[str, list[int]]], rank: int) -> float:
    """How many processors a rank has for itself, from the machines of all ranks and the processors
    that they may run on: one that several share counts in part. Other jobs, and quotas of
    containers, are not known of."""
    machine, mine = places[rank]
    sharing = collections.Counter(
        processor for place, usable in places if place == machine for processor in usable
    )
    return sum(1 / sharing[processor] for processor in mine)


def _place() -> tuple[str, list[int]]:
    """The machine, whatever network namespace or container this is in, and the processors."""
    machine, processors = socket.gethostname(), list(range(os.cpu_count() or 1))
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        machine = file.read().strip()
    with contextlib.suppress(AttributeError):  # not on Linux
        processors = sorted(os.sched_getaffinity(0))
    return machine, processors


def _threads() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:  # not on Linux
        return set()


def _step_back(threads: set[int]) -> None:
    """Lets gloo's threads for arrivals, of these, go last. Such a thread asks again and again for
    as long as another one, which may have been put aside, holds the lock of a connection: where
    processors are short, it takes them from the very thread it waits for."""
    for thread in threads:
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
            if file.read().strip() == "gloo_tcp_loop":
                os.setpriority(os.PRIO_PROCESS, thread, LOWEST_PRIORITY)


def tensor_at(address: int, nbytes: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    """A tensor over memory that the C++ session owns. No copy; the session must outlive it."""
    if nbytes == 0:
        return torch.empty(0, dtype=dtype)
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=dtype)


class PacedLink:
    """An emulated link: holds every collective back until the described link would have delivered
    it. For ranks on one machine; they share a table of times in a file in memory."""

    def __init__(
        self,
        link: Link,
        rank: int,
        ranks: int,
        hosts: int,
        gather_objects: Callable[[Any], list],
    ) -> None:
        schedule = _core.LinkSchedule(link) if isinstance(link, str) else link
        self.description = link if isinstance(link, str) else schedule.describe()
        nbytes = _core.PacedLink.table_bytes(ranks)
        path = ""
        if rank == 0:
            folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
            handle, path = tempfile.mkstemp(prefix="tidegate-link-", dir=folder)
            os.truncate(handle, nbytes)
            os.close(handle)
        try:
            of_all = gather_objects(path)[0]
            self._table = torch.from_file(of_all, shared=True, size=nbytes, dtype=torch.uint8)
            gather_objects(None)  # all have opened it
        finally:
            if rank == 0:
                os.unlink(path)
        self._clocks = _core.PacedLink(schedule, rank, ranks, self._table.data_ptr(), nbytes, hosts)

    def start(self, collective: str, nbytes: int, step: int, group: str) -> int:
        return self._clocks.start(collective, nbytes, time.monotonic_ns(), step, group)

    def due(self, number: int, collective: str, nbytes: int, root: int, group: str) -> int:
        return self._clocks.due(number, collective, nbytes, root, group)


class Nothing:
    """The work of a collective that only others perform."""

    def is_completed(self) -> bool:
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True


def plain(text: str) -> str:
    """What an error of gloo says, without its source file and its general advice."""
    first = text.strip().splitlines()[0]
    first = re.sub(r"^\[[^]]*\.cc:\d+\] ", "", first)
    return re.sub(r"\. This is typically caused by .*", "", first)


class Operation:
    """One collective under way. Keeps its tensors alive until the engine has let go of them.

    launch begins it and returns torch's work; collective, nbytes, group and step are what a link
    has to know of it (collective = None: nothing, it takes no time there); root = the only rank
    whose beginning counts for this one, or -1 for all; step = that of the job, the same on all
    ranks."""

    def __init__(
        self,
        engine: "Engine",
        launch: Callable[[], Any],
        tensors: tuple,
        collective: str | None,
        nbytes: int,
        root: int,
        text: str,
        step: int,
        group: str = "all",
    ) -> None:
        self.engine = engine
        self.tensors = tensors
        self.text = text
        self.began = time.monotonic()
        # Before the launch: another rank may have performed it, and ask when this one began, before
        # the launch returns.
        self._ask_link: Callable[[], int] | None = None  # when it delivers
        if engine.link is not None and collective is not None:
            number = engine.link.start(collective, nbytes, step, group)
            self._ask_link = partial(engine.link.due, number, collective, nbytes, root, group)
        self.work = launch()
        self.prompt = False  # when it was noticed, it had arrived just then
        self._missed = 0.0  # when it was last looked for in vain
        self.due: int | None = None  # when the emulated link delivers, once the real one has

    def done(self, patience: float) -> bool:
        """Waits up to `patience` seconds (0 = only looks); True when the collective has been
        performed. Raises tidegate.Error when it failed or its time is up."""
        now = time.monotonic()
        was_there = self._arrived(0.0)
        if not was_there and not (patience > 0 and self._arrived(patience)):
            self._missed = time.monotonic()
            return False
        self.prompt = not was_there or now - self._missed < PROMPT * (now - self.began)
        return True

    def _arrived(self, patience: float) -> bool:
        """Performed, and delivered by the emulated link if there is one."""
        if self.due is None:
            # Our own deadline: the engine's counts anew in every step inside of a collective.
            remaining = self.began + self.engine.timeout - time.monotonic()
            if not self._performed(max(0.0, min(patience, remaining))):
                if time.monotonic() - self.began > self.engine.timeout:
                    raise Error("timeout", f"no answer within {self.engine.timeout:g} s")
                return False
            if self._ask_link is None:
                return True
            self.due = self._ask_link()
        remaining = self.due / 1e9 - time.monotonic()
        if remaining > 0:
            time.sleep(min(remaining, patience))
        return remaining <= patience

    def _performed(self, patience: float) -> bool:
        if patience == 0 and not self.work.is_completed():
            return False
        try:
            # Whole milliseconds, rounded up: the engine's own resolution, and 0 means for ever.
            self.work.wait(timedelta(milliseconds=max(1, round(patience * 1e3))))
            return True
        except RuntimeError as error:  # "Operation timed out!": the collective goes on
            if not self.work.is_completed():
                return False
            try:
                self.work.wait()
                return True
            except RuntimeError as true_error:
                text = str(true_error)
                kind = "timeout" if "imed out" in text else "peer"
                raise Error(kind, plain(text)) from error


def read_aside(record: torch.Tensor) -> tuple[str, str]:
    """(tag, what) of one rank; a long one is cut."""
    tag, _, what = record.numpy().tobytes().rstrip(b"\0").decode(errors="replace").partition(" ")
    return tag, what


class Script(Protocol):
    """Collectives in a row."""

    def next(self) -> _core.Issue | None: ...


class Engine:
    """Starts collectives for one handle, all from one thread."""

    def __init__(
        self,
        parent: dist.ProcessGroup,
        timeout: float,
        link: Link | None = None,
    ):
        self.timeout = timeout
        self.stopping = threading.Event()  # nobody waits for what is under way any more
        self.link: PacedLink | None = None
        self.lookout: Lookout | None = None  # while a rank waits for others between two steps
        ranks = dist.get_process_group_ranks(parent)
        self._subgroup = len(ranks) < dist.get_world_size()
        known_threads = _threads()
        self.group = self._meet(parent, ranks)
        self.rank = dist.get_rank(self.group)
        self.ranks = len(ranks)
        self._groups = {"all": self.group}
        self._members = {"all": list(range(self.ranks))}  # by their rank in self.group
        self._operations: list[Operation] = []  # whose memory the engine may still hold
        met = self.gather_objects((host_name(), _place()))
        names = [name for name, _ in met]
        self.processors = processors_of([place for _, place in met], self.rank)
        self._calm(known_threads)
        self.hosts = [names.index(name) for name in names]  # a host's first rank names it
        if link is not None:
            self.link = PacedLink(
                link, self.rank, self.ranks, len(set(self.hosts)), self.gather_objects
            )

    def _meet(self, parent: dist.ProcessGroup, ranks: list[int]) -> dist.ProcessGroup:
        """The group of all ranks; or an error that says who did not come."""
        store, rank = parent.get_group_store(), dist.get_rank(parent)
        time_of_parent = _MEETINGS.get(parent, 0)
        _MEETINGS[parent] = time_of_parent + 1
        here = [f"tidegate/attach/{time_of_parent}/{each}" for each in range(len(ranks))]
        store.set(here[rank], "")
        try:
            return self._new_group(ranks, self._subgroup)
        except RuntimeError as error:
            absent = []
            with contextlib.suppress(RuntimeError):
                absent = [str(each) for each, key in enumerate(here) if not store.check([key])]
            who = f" without rank {', '.join(absent)}" if absent else ""
            raise Error(
                "timeout",
                f"rank {rank} of {len(ranks)} waited {self.timeout:g} s in attach{who}: the ranks "
                f"could not form a group ({plain(str(error))}). Every rank of the "
                "model must call attach, in the same order; look at the logs of those that did not",
            ) from error

    def _new_group(self, ranks: list[int], local: bool) -> dist.ProcessGroup:
        return dist.new_group(
            ranks,
            backend="gloo",
            use_local_synchronization=local,  # the others know nothing of us
            timeout=timedelta(seconds=self.timeout),
        )

    def _calm(self, known: set[int]) -> None:
        """Threads for arrivals that are not among the known ones."""
        if self.processors <= FEW_PROCESSORS:
            _step_back(_threads() - known)

    def form_host_groups(self) -> None:
        """One group for the ranks of this host, one for the first ranks of all hosts. Collective:
        all ranks must have agreed on it."""
        ranks = dist.get_process_group_ranks(self.group)
        self._members["host"] = [r for r, h in enumerate(self.hosts) if h == self.hosts[self.rank]]
        self._members["leaders"] = sorted(set(self.hosts))
        known_threads = _threads()
        for group in ("host", "leaders"):
            # torch names such a group after how many there are on this rank: every rank must form
            # equally many, so a rank that leads nothing forms one with itself.
            inside = self.rank in self._members[group]
            members = self._members[group] if inside else [self.rank]
            try:
                self._groups[group] = self._new_group([ranks[r] for r in members], True)
            except RuntimeError as error:
                raise Error(
                    "timeout",
                    f"rank {self.rank} of {self.ranks}: the ranks of one host could not form a "
                    f"group within {self.timeout:g} s: {error}; look at the logs of the others",
                ) from error
        self._calm(known_threads)

    def form_group_of_asides(self) -> None:
        """A group for what ranks tell each other beside the collectives of steps. Collective: all
        ranks must have agreed on it. Of its own, because a rank may be alone in it: gloo would end
        a process that receives a bucket where it expects a word."""
        ranks = dist.get_process_group_ranks(self.group)
        try:
            self._groups[ASIDES] = self._new_group(ranks, self._subgroup)
        except RuntimeError as error:
            raise Error(
                "timeout",
                f"rank {self.rank} of {self.ranks}: the ranks could not form a second group within "
                f"{self.timeout:g} s: {plain(str(error))}; look at the logs of the others",
            ) from error

    def start_aside(self, what: str, tag: str) -> "tuple[Operation, list[torch.Tensor]]":
        """Begins to tell all ranks what this one is about, and a word without spaces; the list is
        for `read_aside` when the operation is done. All records are of one size, so that ranks may
        be about different things."""
        record = torch.zeros(ASIDE_BYTES, dtype=torch.uint8)
        text = f"{tag} {what}".encode()[:ASIDE_BYTES]
        record[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        everyone = [torch.empty_like(record) for _ in range(self.ranks)]
        return self._start_gather(record, everyone, what), everyone

    def _start_gather(
        self, mine: torch.Tensor, everyone: list[torch.Tensor], what: str
    ) -> Operation:
        group = self._groups.get(ASIDES, self.group)
        launch = partial(group.allgather, [everyone], [mine])
        kept = (mine, everyone)
        return self._remember(Operation(self, launch, kept, None, mine.nbytes, -1, what, 0))

    def start(self, issue: "_core.Issue") -> Operation:
        """Begins what a session asks for."""
        group = self._groups[issue.group]
        members = self._members[issue.group]
        mine = tensor_at(issue.address, issue.bytes, DTYPES[issue.element])
        target = tensor_at(issue.target, issue.target_bytes)
        tensors: tuple = (mine, target)
        launch: Callable[[], Any]
        waits_for = -1  # whose contribution this rank needs, if not everybody's
        if issue.collective == "all-reduce":
            summing = dist.AllreduceOptions()
            summing.reduceOp = dist.ReduceOp(dist.ReduceOp.SUM)
            launch = partial(group.allreduce, [mine], summing)
        elif issue.collective == "all-gather":
            outputs = list(target.split(issue.bytes)) if issue.bytes else [target] * len(members)
            launch = partial(group.allgather, [outputs], [mine])
            tensors += (outputs,)
        elif issue.collective == "broadcast":
            root = dist.BroadcastOptions()
            root.rootRank = issue.root
            root.rootTensor = 0
            launch = partial(group.broadcast, [mine], root)
            waits_for = members[issue.root]
        elif issue.collective == "all-to-all":
            launch = partial(group.alltoall_base, target, mine, [], [])
        elif issue.collective == "send-receive":
            # Carried by an all-to-all with nothing for all but one: gloo's sends and receives spin
            # while they wait (docs/ARCHITECTURE.md).
            sends, receives = [0] * len(members), [0] * len(members)
            if issue.to >= 0:
                sends[issue.to] = issue.bytes
            if issue.source >= 0:
                receives[issue.source] = issue.target_bytes
            launch = partial(group.alltoall_base, target, mine, receives, sends)
            waits_for = members[issue.source] if issue.source >= 0 else self.rank
        elif issue.collective == "idle":
            launch, tensors = Nothing, ()
            waits_for = self.rank
        else:
            raise Error("unsupported", f"collective {issue.collective}")
        return self._remember(
            Operation(
                self,
                launch,
                tensors,
                issue.priced,
                issue.priced_bytes,
                waits_for,
                issue.text,
                issue.step,
                issue.group,
            )
        )

    def calibrate(self) -> "_core.Calibration":
        """Measures the network through this group. Collective; the result is the same on all
        ranks."""
        calibration = _core.Calibration(self.rank, self.ranks, len(set(self.hosts)))
        self.perform(calibration)
        return calibration

    def perform(self, script: "Script") -> None:
        """Performs what script.next() asks for, one collective after another."""
        while (issue := script.next()) is not None:
            operation = self.start(issue)
            operation.tensors += (script,)  # its memory must outlive a time-out
            self.finish(operation, "the network could not be measured")

    def all_reduce(self, tensor: torch.Tensor, text: str, step: int) -> Operation:
        """Sums a tensor of any kind that gloo knows, in place."""
        launch = partial(dist.all_reduce, tensor, group=self.group, async_op=True)
        parts = (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)
        nbytes = sum(part.nbytes for part in parts)
        return self._remember(
            Operation(self, launch, (tensor,), "all-reduce", nbytes, -1, text, step)
        )

    def _remember(self, operation: Operation) -> Operation:
        self._operations = [op for op in self._operations if not op.work.is_completed()]
        self._operations.append(operation)
        return operation

    def gather_objects(self, value: Any, what: str = "attach") -> list:
        """Every rank's value, in rank order. what = what they are for: ranks that call it for
        different things get an error."""
        mine = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        if self.lookout is not None:
            self.lookout.begin_aside(what)
        operation, records = self.start_aside(what, str(mine.numel()))
        self._finish_aside(operation)
        asides = [read_aside(record) for record in records]
        for rank, (_, theirs) in enumerate(asides):
            if theirs != what:
                raise Error(
                    "config",
                    f"rank {rank} is in [{theirs}] and rank {self.rank} in [{what}]: every rank "
                    "must call save, load, mean_state_dict and flush, between the same two steps "
                    "and in the same order",
                )
        lengths = [int(tag) for tag, _ in asides]
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: mine.numel()] = mine
        texts = [torch.empty_like(padded) for _ in range(self.ranks)]
        self._finish_aside(self._start_gather(padded, texts, what))
        if self.lookout is not None:
            self.lookout.end_aside()
        return [
            pickle.loads(text[:n].numpy().tobytes()) for text, n in zip(texts, lengths, strict=True)
        ]

    def _finish_aside(self, operation: Operation) -> None:
        trouble = "the ranks could not tell each other their settings or states"
        self.finish(operation, trouble, self.lookout)

    def finish(self, operation: Operation, trouble: str, lookout: "Lookout | None" = None) -> None:
        """Waits for a collective that is no part of a step. trouble = what it means if it fails."""
        try:
            while not operation.done(STEP_OF_WAIT):
                self.check_stopping()
                if lookout is not None:
                    lookout.wait_aside(operation.began)
        except Error as error:
            raise Error(
                error.kind,
                f"rank {self.rank} of {self.ranks}: {trouble} ({operation.text}): {error}. Every "
                "rank must call attach, save, load and flush, in the same order; look for an error "
                "in the logs of the others",
            ) from error

    def check_stopping(self) -> None:
        if self.stopping.is_set():
            raise Error("peer", "the process ends while a collective is under way")

    def close(self, exiting: bool = False, keep: tuple = ()) -> None:
        """Frees the group; or, while an operation is still pending on it, leaves it and its memory
        to the end of the process: the engine's thread may yet write, and freeing would block."""
        if not all(operation.work.is_completed() for operation in self._operations):
            for item in (self, self.group, self._operations, *keep):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))
            return
        for name, group in self._groups.items():
            if (self._subgroup or name not in ("all", ASIDES)) and not exiting:
                continue  # torch would give its name, and so stale addresses, to the next such one
            # An error here means that the user has already torn everything down.
            with contextlib.suppress(ValueError, AssertionError):
                dist.destroy_process_group(group)
