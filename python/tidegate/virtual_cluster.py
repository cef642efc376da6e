# SPDX-License-Identifier: Apache-2.0
"""N virtual workers in one process: real gradients of the user's model and data through the real
exchange, rank by rank in lockstep. What it says about bytes and convergence is what a cluster of N
would see; seconds are modelled from the link's description and the time that computing takes.

    task = tidegate.Task(model, optimizer, batches, loss, evaluate)
    cluster = tidegate.VirtualCluster(task, ranks=16, policy="fixed", method="topk", ratio=0.01)
    print(cluster.run(steps=200))

One model serves all workers: after every step they would hold the same parameters, bit for bit.
Buffers (batch-norm statistics) are rank 0's, as with DDP: every worker's forward starts from them.
Small models are fastest with torch.set_num_threads(1), which is also what torchrun gives a process.
"""

import contextlib
import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from . import _core, bucket_table, snapshots
from .attach import DEPTH, _resolve_policy, _trace_path
from .errors import Error
from .gradients import Gradients
from .micro_batches import scale_rates
from .tasks import Task, find
from .worker_batches import WorkerBatches, seed_torch

LAST_LOSSES = 20  # steps over which the final loss is averaged

UNLIMITED = (math.inf, 0.0)  # bytes per second and latency, where no link is described


@dataclass
class Outcome:
    """What a run came to. Bytes are those one rank sent, on average."""

    steps: int
    loss: float  # mean over workers and the last steps
    figures: dict[str, float]  # the task's own
    bytes_sent: float
    dense_bytes: float
    link: str
    compute_seconds: float  # of one worker and batch, given or measured
    modelled_wire_seconds: float | None  # during which bytes are on the wire
    modelled_exposed_seconds: float | None  # during which computing waits for them
    modelled_seconds: float | None  # all steps, on the link, overlapped as in a real job
    seconds: float  # this process took
    choices: dict[str, int]
    roots: dict[int, int]

    @property
    def ratio(self) -> float:
        """Bytes sent, of those that dense fp32 would have sent."""
        return self.bytes_sent / self.dense_bytes if self.dense_bytes else 1.0

    def as_dict(self) -> dict:
        """All of it, for JSON."""
        return {**asdict(self), "ratio": self.ratio}


class VirtualCluster:
    """See the module. Options that tidegate.attach does not have:

    hosts            the host of every rank, for routes by host
    bucket_mb        as DDP's bucket_cap_mb
    buckets          names of parameters, bucket by bucket, instead of DDP's tables
    link             "100mbit,2ms", or a schedule (tidegate simulate --link-schedule)
    compute_seconds  what forward and backward of one worker's batch take; measured if not given,
                     which no two runs do alike
    scale            the model stands for one so many times as large: on the link its bytes, and
                     what compressing and decoding take, count so many times; records of policies,
                     which do not grow with a model, once. bytes_sent, and bytes and rates in
                     traces, are those of the model as it is
    calibrate        as for tidegate.attach: sessions start from the link, and open routes go by
                     price
    seed             of a task that is given by name, and of dropout, which depends on seed, step
                     and worker only
    horizon          as for tidegate.attach
    check            compares the results of all ranks after every step, which costs a little
    """

    def __init__(
        self,
        task: Task | Callable[..., Task] | str,
        ranks: int,
        link: "str | _core.LinkSchedule" = "",
        *,
        policy: Any = "fixed",
        method: str | None = None,
        ratio: float | None = None,
        rank: int | None = None,
        bits: int | None = None,
        route: str = "auto",
        exclude: str | Iterable[str] = (),
        trace: str | os.PathLike[str] | None = None,
        hosts: list[int] | None = None,
        bucket_mb: float | None = None,
        buckets: bucket_table.Table | None = None,
        compute_seconds: float | None = None,
        scale: float = 1.0,
        seed: int = 0,
        check: bool = False,
        calibrate: bool | None = None,
        horizon: int | None = None,
    ) -> None:
        if not isinstance(ranks, int) or ranks < 1:
            raise Error("config", f"ranks {ranks!r}: must be a whole number, 1 or more")
        # Of modelled time: this process's own would make runs differ.
        self._clock = _core.ModelledClock(scale)
        schedule = _core.LinkSchedule(link) if link and isinstance(link, str) else link
        if schedule and scale != 1:  # bytes are counted where they are priced
            parts = [(step, rate / scale, latency) for step, rate, latency in schedule.segments]
            schedule = _core.LinkSchedule(parts)
        if compute_seconds is not None and not 0 <= compute_seconds < math.inf:
            raise Error("config", f"compute_seconds {compute_seconds}: must be a number, 0 or more")
        self.task = find(task, seed)
        fixed = {"method": method, "ratio": ratio, "rank": rank, "bits": bits, "route": route}
        chosen = _resolve_policy(policy, fixed, self.task.optimizer, horizon)
        self.link = link if isinstance(link, str) else link.describe()
        if self.link and scale != 1:
            self.link += f", for a model {scale:g} times as large"
        self._sessions = [
            _core.Session(
                worker,
                ranks,
                chosen.name,
                chosen.options,
                exclude=[exclude] if isinstance(exclude, str) else list(exclude),
                depth=DEPTH,
                trace=_trace_path(trace, worker),
                emulated=self.link,
                hosts=list(hosts or []),
                clock=self._clock,
                own=own,
            )
            for worker, own in enumerate(chosen.adapters(ranks))
        ]
        self._exclude, self._given_hosts = exclude, hosts
        self.ranks = ranks
        self._schedule = schedule or None
        self._hosts = len(set(hosts)) if hosts else ranks
        self._job = _core.ModelledJob(self._sessions, self._clock)
        self._calibrates = self._sessions[0].reacts() if calibrate is None else calibrate
        self._calibrate(0)
        if self._sessions[0].needs_speeds():
            speeds = [[scale * s for s in each] for each in measured_speeds()]
            for session in self._sessions:
                session.set_speeds(speeds)
        self.losses: list[float] = []  # of every step, the mean over workers
        self._seed = seed
        self._check = check
        self._bucket_mb = bucket_mb
        self._parameters = bucket_table.trained_parameters(self.task.model)
        self._has_buffers = any(True for _ in self.task.model.buffers())
        self._follows_ddp = buckets is None
        self._filled: list[str] = []  # parameters, as the first backward fills them
        self._lay_out(
            [list(self._parameters)]
            if buckets is None
            else bucket_table.check(buckets, self._parameters)
        )
        self._batches = WorkerBatches(self.task.batches, ranks, seed)
        self._given_compute = compute_seconds
        self._given_link, self._scale = link, scale
        self._computed: list[float] = []  # seconds of one worker, step by step
        self._modelled: list[tuple] = []  # seconds of each step: in all, exposed, on the wire
        self._counts = snapshots.Counts(self._sessions)

    # --- running ---

    def end_traces(self) -> None:
        """Whatever there is to read in traces is in their files then; run() does it by itself."""
        for session in self._sessions:
            session.note_end()

    def run(self, steps: int, progress: Callable[[int, float], None] | None = None) -> Outcome:
        """Trains on for `steps` steps. progress(step, loss) is called after each."""
        began = time.monotonic()
        for _ in range(steps):
            loss = self.step()
            if progress:
                progress(len(self.losses), loss)
        figures = self.evaluate()
        if figures:
            self._sessions[0].log({name: float(value) for name, value in figures.items()})
        self.end_traces()
        counts = self.counts
        last = self.losses[-LAST_LOSSES:]
        return Outcome(
            steps=len(self.losses),
            loss=sum(last) / max(1, len(last)),
            figures=figures,
            bytes_sent=counts["bytes_sent"],
            dense_bytes=counts["dense_bytes"],
            link=self.link,
            compute_seconds=self.compute_seconds,
            modelled_wire_seconds=self._sum(2),
            modelled_exposed_seconds=self._sum(1),
            modelled_seconds=self._sum(0),
            seconds=time.monotonic() - began,
            choices=counts["choices"],
            roots=counts["roots"],
        )

    @property
    def counts(self) -> dict:
        """Of the steps so far: bytes that a rank sent, on average, and that dense fp32 would have
        sent; how often each choice was made; how often each rank was the root."""
        counts = self._counts.now()
        return {**counts, "bytes_sent": counts["bytes_sent"] / self.ranks}

    def evaluate(self) -> dict[str, float]:
        """The task's figures, as the model is now."""
        if self.task.evaluate is None:
            return {}
        training = [module for module in self.task.model.modules() if module.training]
        self.task.model.eval()
        try:
            with torch.no_grad():
                return self.task.evaluate(self.task.model)
        finally:
            for module in training:
                module.training = True

    def step(self) -> float:
        """One step of all workers, of as many batches each as the policy says. Returns the mean of
        their losses."""
        with random_state_kept():
            step = self._next_step()
            loss = self._compute_gradients(step)
        self._average(len(step))
        self._gradients.hand_out()
        if self.task.before_step is not None:
            self.task.before_step(self.task.model)
        self.task.optimizer.step()
        if self.task.scheduler is not None:
            self.task.scheduler.step()
        self.losses.append(loss)
        self._sessions[0].log({"loss": loss})
        if self._filled:
            self._rebuild_buckets()
        return loss

    # --- time ---

    @property
    def compute_seconds(self) -> float:
        """Forward and backward of a batch: as given, or the median of what this process took."""
        if self._given_compute is not None:
            return self._given_compute
        return statistics.median(self._computed) if self._computed else 0.0

    @property
    def step_seconds(self) -> list[float]:
        """Modelled, of every step so far; where no link is described, of one that takes no time."""
        return [total for total, _, _ in self._modelled]

    @property
    def last_step_seconds(self) -> float:
        """Modelled, of the last step."""
        return self._modelled[-1][0]

    def collective_costs(self, ratio: float, artopk: str = "artopk-star") -> list[tuple]:
        """(method, route, modelled seconds) of each collective that sends the largest elements of a
        step, on the link as it is now."""
        network = self._network(len(self.losses))
        return _core.collective_costs(network, self._gradients.elements(), ratio, artopk)

    def _calibrate(self, step: int) -> None:
        if self._calibrates:
            for session in self._sessions:
                session.start_from(self._network(step))

    def _network(self, step: int) -> "_core.Network":
        link = self._schedule.at(step) if self._schedule else UNLIMITED
        return _core.Network(self.ranks, self._hosts, link)

    def _sum(self, figure: int) -> float | None:
        return sum(step[figure] for step in self._modelled) if self._schedule else None

    # --- going back ---

    def snapshot(self) -> dict:
        """Everything that the following steps depend on; may be written with torch.save. Taking it
        changes nothing."""
        return {
            "version": snapshots.VERSION,
            "ranks": self.ranks,
            "table": self._table,
            "place": (self._batches.epoch, self._batches.index),
            "losses": list(self.losses),
            "modelled": list(self._modelled),
            "counts": self._counts.now(),
            "sessions": snapshots.sessions_state(self._sessions),
            "training": snapshots.training_state(self.task),
            "random": torch.get_rng_state(),
        }

    def restore(self, snapshot: dict) -> None:
        """Goes on from a snapshot of this cluster, or of one that was made alike."""
        snapshots.check(snapshot, self.ranks, self.task.model)
        table = bucket_table.check(snapshot["table"], self._parameters)
        snapshots.load_training(self.task, snapshot["training"])
        if table != self._table:
            self._lay_out(table)
        snapshots.load_sessions(self._sessions, snapshot["sessions"])
        self._counts.restart(snapshot["counts"])
        self._batches.go_to(*snapshot["place"])
        self.losses = list(snapshot["losses"])
        self._modelled = list(snapshot["modelled"])
        torch.set_rng_state(snapshot["random"])

    def alike(
        self, policy: Any, *, trace: str | os.PathLike[str] | None = None
    ) -> "VirtualCluster":
        """Another policy with the same task, buckets and link. Both train the one model: restore a
        snapshot before going on with either."""
        return VirtualCluster(
            self.task,
            self.ranks,
            self._given_link,
            policy=policy,
            exclude=self._exclude,
            trace=trace,
            hosts=self._given_hosts,
            buckets=self._table,
            compute_seconds=self._given_compute,
            scale=self._scale,
            seed=self._seed,
        )

    # --- one step ---

    def _next_step(self) -> list[list]:
        """Its batches, [batch][worker], as handle.micro_batches would give them to every worker."""
        first = self._sessions[0]  # they all say the same
        scale_rates(self.task.optimizer, self.task.scheduler, first.rate_scale)
        epoch = self._batches.epoch
        step = self._batches.next_step(first.batches_per_step)
        rates = [float(group["lr"]) for group in self.task.optimizer.param_groups]
        for session in self._sessions:
            session.set_learning_rates(rates)
            if self._batches.epoch != epoch:
                session.end_epoch()
        return step

    def _compute_gradients(self, step: list[list]) -> float:
        total, began = 0.0, time.perf_counter()
        model, number = self.task.model, len(self.losses)
        start = copies(model.buffers()) if self._has_buffers else []
        kept = start
        for worker in range(self.ranks):
            if worker > 0 and start:
                put_back(model.buffers(), start)
            self._gradients.clear()
            watched = worker == 0 and number == 0 and self._follows_ddp
            with self._watch_backward() if watched else contextlib.nullcontext():
                for index, batches in enumerate(step):
                    # The first as ever: one batch must be one batch, whatever the policy.
                    more = (index,) if index else ()
                    seed_torch(self._seed, "step", number, worker, *more)
                    loss = self.task.loss(model, batches[worker])
                    (loss * (1 / len(step))).backward()
                    total += loss.item()
            self._gradients.collect(worker)
            if worker == 0 and start:
                kept = copies(model.buffers())
        if start:
            put_back(model.buffers(), kept)
        count = self.ranks * len(step)
        self._computed.append((time.perf_counter() - began) / count)
        return total / count

    def _average(self, batches: int) -> None:
        compute = self.compute_seconds
        before = (batches - 1) * compute  # backward of the last batch fills the buckets
        ready = self._job.begin_step(self._gradients.elements(), compute, before)
        self._gradients.submit(self._sessions, ready)
        network = self._network(len(self.losses))
        self._modelled.append(self._job.finish_step(network, before + compute))
        for session in self._sessions:
            session.take_finished()
        if self._check:
            self._gradients.check_equal()

    # --- buckets ---

    def _lay_out(self, table: bucket_table.Table) -> None:
        self._table = table
        self._gradients = Gradients(self.ranks, self._parameters, table)
        for index, names in enumerate(table):
            layers = [layer(name, self._parameters[name]) for name in names]
            for session in self._sessions:
                session.lay_out(index, layers)

    @contextlib.contextmanager
    def _watch_backward(self) -> Iterator[None]:
        """Notes the order in which parameters get their gradients."""
        filled: dict[str, None] = {}  # as an ordered set
        hooks = [
            parameter.register_post_accumulate_grad_hook(
                lambda _, name=name: filled.setdefault(name)
            )
            for name, parameter in self._parameters.items()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        absent = [name for name in reversed(self._parameters) if name not in filled]
        self._filled = [*filled, *absent]

    def _rebuild_buckets(self) -> None:
        """After the first step, as DDP does."""
        filled = {name: self._parameters[name] for name in self._filled}
        self._filled = []
        self._lay_out(bucket_table.cut(filled, self._bucket_mb))


def layer(name: str, parameter: torch.nn.Parameter) -> tuple[str, int, int]:
    """As a session is told of it."""
    return name, parameter.numel(), parameter.shape[0] if parameter.dim() > 1 else 0


@functools.cache
def measured_speeds() -> list:
    """Once in a process, so that clusters side by side decide alike."""
    return _core.measure_speeds()


def copies(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def put_back(tensors: Iterable[torch.Tensor], copied: list[torch.Tensor]) -> None:
    for tensor, copy in zip(tensors, copied, strict=True):
        tensor.copy_(copy)


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Torch's random numbers go on afterwards as if nothing had been drawn."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
