# SPDX-License-Identifier: Apache-2.0
"""N virtual workers in one process: real gradients of the user's model and data through the real
exchange, rank by rank in lockstep. What it says about bytes and convergence is what a cluster of N
would see; seconds on the wire are modelled from the link's description.

    task = tidegate.Task(model, optimizer, batches, loss, evaluate)
    cluster = tidegate.VirtualCluster(task, ranks=16, policy="fixed", method="topk", ratio=0.01)
    print(cluster.run(steps=200))

One model serves all workers: after every step they would hold the same parameters, bit for bit.
Buffers (batch-norm statistics) are therefore those of all workers in turn, where DDP would keep
rank 0's.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest

import torch

from . import _core
from .attach import DEPTH, _resolve_policy, _trace_path
from .buckets import BUCKET_MB, cut
from .errors import Error
from .tasks import Task, find

MISSING = object()  # in place of a batch


@dataclass
class Outcome:
    """What a run came to. Bytes are those one rank sent, on average."""

    steps: int
    loss: float  # mean over workers and the last steps
    figures: dict[str, float]  # the task's own
    bytes_sent: float
    dense_bytes: float
    link: str
    modelled_wire_seconds: float | None  # collectives one after another, nothing overlapped
    seconds: float  # this process took
    choices: dict[str, int]
    roots: dict[int, int]

    @property
    def ratio(self) -> float:
        return self.bytes_sent / self.dense_bytes if self.dense_bytes else 1.0

    def as_dict(self) -> dict:
        return {**asdict(self), "ratio": self.ratio}


class VirtualCluster:
    """See the module. `hosts` names the host of every rank, for routes by host; the other options
    are those of tidegate.attach."""

    def __init__(
        self,
        task: Task | Callable[[], Task] | str,
        ranks: int,
        link: str = "",
        *,
        policy="fixed",
        method=None,
        ratio=None,
        rank=None,
        bits=None,
        route="auto",
        exclude=(),
        trace=None,
        hosts: list[int] | None = None,
        bucket_mb: float = BUCKET_MB,
        check: bool = False,
    ):
        """check = compares the results of all ranks after every step, which costs a little."""
        if not isinstance(ranks, int) or ranks < 1:
            raise Error("config", f"ranks {ranks!r}: must be a whole number, 1 or more")
        if link:
            _core.parse_link(link)
        self.task = find(task)
        self.ranks = ranks
        self.link = link
        self._check = check
        fixed = {"method": method, "ratio": ratio, "rank": rank, "bits": bits, "route": route}
        chosen = _resolve_policy(policy, fixed)
        self._sessions = [
            _core.Session(
                worker,
                ranks,
                chosen.name,
                chosen.options,
                exclude=[exclude] if isinstance(exclude, str) else list(exclude),
                depth=DEPTH,
                trace=_trace_path(trace, worker),
                emulated=link,
                hosts=list(hosts or []),
            )
            for worker in range(ranks)
        ]
        self._buckets = make_buckets(self.task.model, bucket_mb)
        self._buffers = [  # of every rank, one per bucket
            [torch.zeros(sum(p.numel() for _, p in bucket)) for bucket in self._buckets]
            for _ in range(ranks)
        ]
        for session in self._sessions:
            for index, bucket in enumerate(self._buckets):
                session.lay_out(
                    index,
                    [(name, p.numel(), p.shape[0] if p.dim() > 1 else 0) for name, p in bucket],
                )
        self._modelled_seconds = 0.0
        self._batches = self._all_batches()
        self.losses: list[float] = []  # of every step, the mean over workers

    def run(self, steps: int, progress: Callable[[int, float], None] | None = None) -> Outcome:
        """Trains on for `steps` steps. progress(step, loss) is called after each."""
        began = time.monotonic()
        for _ in range(steps):
            loss = self.step()
            if progress:
                progress(len(self.losses), loss)
        self.task.model.eval()
        figures = self.task.evaluate(self.task.model) if self.task.evaluate else {}
        self.task.model.train()
        totals = [session.totals() for session in self._sessions]
        last = self.losses[-20:]
        return Outcome(
            steps=len(self.losses),
            loss=sum(last) / max(1, len(last)),
            figures=figures,
            bytes_sent=sum(t["bytes_sent"] for t in totals) / self.ranks,
            dense_bytes=totals[0]["dense_bytes"],
            link=self.link,
            modelled_wire_seconds=self._modelled_seconds if self.link else None,
            seconds=time.monotonic() - began,
            choices=totals[0]["choices"],
            roots=totals[0]["roots"],
        )

    def step(self) -> float:
        """One step of all workers. Returns the mean of their losses."""
        total = 0.0
        for worker, batch in enumerate(next(self._batches)):
            self.task.optimizer.zero_grad(set_to_none=True)
            loss = self.task.loss(self.task.model, batch)
            loss.backward()
            total += loss.item()
            self._collect(self._buffers[worker])
        self._average()
        self._hand_out(self._buffers[0])
        self.task.optimizer.step()
        if self.task.scheduler is not None:
            self.task.scheduler.step()
        self.losses.append(total / self.ranks)
        return self.losses[-1]

    def _all_batches(self) -> Iterator[list]:
        """One batch per worker and step, epoch after epoch."""
        epoch = 0
        while True:
            sources = [self.task.batches(w, self.ranks, epoch) for w in range(self.ranks)]
            any_came = False
            for batches in zip_longest(*sources, fillvalue=MISSING):
                short = [w for w, batch in enumerate(batches) if batch is MISSING]
                if short:
                    raise Error(
                        "config",
                        f"worker {short[0]} of {self.ranks} has fewer batches than others; every "
                        "worker must have equally many",
                    )
                any_came = True
                yield list(batches)
            if not any_came:
                raise Error("config", f"the task has no batches for {self.ranks} workers")
            epoch += 1

    def _collect(self, buffers: list[torch.Tensor]) -> None:
        for bucket, buffer in zip(self._buckets, buffers, strict=True):
            at = 0
            for _, parameter in bucket:
                part = buffer[at : at + parameter.numel()]
                if parameter.grad is None:
                    part.zero_()
                else:
                    part.copy_(parameter.grad.reshape(-1))
                at += parameter.numel()

    def _average(self) -> None:
        for index in range(len(self._buckets)):
            last = index + 1 == len(self._buckets)
            for session, buffers in zip(self._sessions, self._buffers, strict=True):
                buffer = buffers[index]
                session.submit(buffer.data_ptr(), 4 * buffer.numel(), last=last)
        self._modelled_seconds += _core.run_lockstep(self._sessions, self.link)
        for session in self._sessions:
            session.take_finished()
        if self._check:
            for worker, buffers in enumerate(self._buffers):
                for index, buffer in enumerate(buffers):
                    if not torch.equal(buffer, self._buffers[0][index]):
                        raise Error("numeric", f"rank {worker} differs from rank 0: bucket {index}")

    def _hand_out(self, buffers: list[torch.Tensor]) -> None:
        for bucket, buffer in zip(self._buckets, buffers, strict=True):
            at = 0
            for _, parameter in bucket:
                part = buffer[at : at + parameter.numel()]
                parameter.grad = part.view_as(parameter).clone()
                at += parameter.numel()


def make_buckets(model, bucket_mb: float) -> list[list[tuple[str, torch.nn.Parameter]]]:
    """The model's trained parameters as buckets, in the order in which backward fills them."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not trained:
        raise Error("config", "no parameter of the model requires a gradient: nothing to average")
    for name, parameter in trained:
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            raise Error(
                "unsupported",
                f'parameter "{name}" is {parameter.dtype} on {parameter.device}: a virtual cluster '
                "takes fp32 on the CPU",
            )
    return cut(trained, lambda named: 4 * named[1].numel(), bucket_mb)
