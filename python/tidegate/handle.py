# SPDX-License-Identifier: Apache-2.0
"""One model's exchanges: DDP's hook hands buckets to one background thread, which drives the C++
session and performs its collectives, so that backward goes on while buckets are on their way.

    autograd thread            exchange thread                         other ranks
    hook(bucket) --inbox-->    session.submit, next (compress)
                               engine.start ------------------------>  collective
    optimizer <---future---    session.complete (decode, add)
"""

import atexit
import queue
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from . import _core
from .engine import DTYPES, STEP_OF_WAIT, Engine, Operation
from .errors import Error
from .micro_batches import MicroBatch, micro_batches, scale_rates
from .progress import Progress
from .staging import Staging

ELEMENTS = {dtype: name for name, dtype in DTYPES.items() if name != "uint8"}
POLL = 0.001  # seconds; how soon an arrival is noticed while more buckets are to come
LONG_WAIT = 0.5  # seconds; a rank that waits longer says in the store where it is
SETTLE = 1.7  # seconds after which every rank that waits has said where it is (see Progress)
LONG_EPOCH = 1000  # steps after which a policy that counts in epochs should have heard of one
JOIN = 5.0  # seconds to let the thread finish what is under way when the handle is closed


@dataclass
class ReadyBucket:
    """What the hook hands over. The future and the buffer stay alive until the mean is in place."""

    buffer: torch.Tensor  # in host memory
    layers: list[tuple[str, int, int]] | None  # name, elements, rows; only when they changed
    last: bool
    loss_scale: float
    when: int
    future: torch.futures.Future
    device_buffer: torch.Tensor | None = None  # DDP's own, if it is on a device
    fetched: object = None  # the event of the copy from there
    rates: list[float] | None = None  # of the optimizer's groups; with the first bucket of a step


@dataclass
class Flying:
    """A collective under way, and the place it has in the step."""

    bucket: int
    round: int
    operation: Operation
    foreign: torch.Tensor | None  # whether its result is finite, the session cannot see


def is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor._values() if tensor.is_sparse else tensor).all())


def to_tensors(memory: dict[str, bytes]) -> dict[str, torch.Tensor]:
    return {
        name: torch.frombuffer(bytearray(data), dtype=torch.float32)
        for name, data in memory.items()
        if data
    }


def to_bytes(memory: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {
        name: values.to(torch.float32).contiguous().numpy().tobytes()
        for name, values in memory.items()
    }


def checked_figures(figures: dict) -> dict[str, float]:
    checked = {}
    for name, value in figures.items():
        try:
            checked[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise Error(
                "config", f"log({name}={value!r:.60}): is no number ({error}); give a float"
            ) from None
    return checked


def average_densely(bucket: dist.GradBucket, group: dist.ProcessGroup) -> torch.futures.Future:
    """What DDP would do without a hook."""
    buffer = bucket.buffer().mul_(1.0 / dist.get_world_size(group))
    work = dist.all_reduce(buffer, group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


class Handle:
    """What `tidegate.attach` returns."""

    def __init__(
        self,
        ddp,
        session: "_core.Session",
        engine: Engine,
        scaler,
        optimizer,
        label: str,
        staging: Staging | None = None,
    ):
        self.label = label
        self.optimizer = optimizer
        self._session = session
        self._engine = engine
        self._scaler = scaler
        self._staging = staging  # for models on a device
        self._names = {id(p): name for name, p in ddp.module.named_parameters()}
        self._ddp = weakref.ref(ddp)  # which holds on to this handle
        self._parent = ddp.process_group
        self._progress = Progress(engine.group, label, engine.rank, engine.ranks)
        self._layouts: dict[int, tuple[int, ...]] = {}
        self._inbox: queue.SimpleQueue[ReadyBucket | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # the session belongs to one thread at a time
        self._error: BaseException | None = (
            None  # once there is one, it stays: the ranks are out of step
        )
        self._error_shown = False
        self._stopping = threading.Event()
        self._closed = False
        self._inbox_closed = False
        self._step: list[ReadyBucket] = []  # the buckets of the present step
        self._flying: deque[Flying] = deque()
        self._looking_at: Flying | None = None  # whose outcome is being waited for or used
        self._loss_scale = 1.0
        self._steps = 0
        # One rank's warning is enough.
        self._waits_for_epoch = session.counts_epochs() and engine.rank == 0
        self._thread = threading.Thread(target=self._work, name=f"tidegate {label}", daemon=True)
        self._thread.start()
        atexit.register(self._close, exiting=True)

    # --- for the user ---

    def stats(self) -> dict:
        """Bytes, ratio and milliseconds per step and phase, since attach; of this rank."""
        with self._lock:
            totals = self._session.totals()
            network = self._session.network()
            compute, buckets = self._session.times()
        steps = max(1, totals["steps"])
        return {
            "steps": totals["steps"],
            "bytes_sent": totals["bytes_sent"],
            "dense_bytes": totals["dense_bytes"],
            "ratio": totals["bytes_sent"] / totals["dense_bytes"] if totals["dense_bytes"] else 1.0,
            "ms": {
                phase: 1e3 * totals[f"{phase}_seconds"] / steps
                for phase in ("compress", "wire", "decode", "exchange")
            },
            "backlog": totals["residual_energy"] / totals["gradient_energy"]
            if totals["gradient_energy"]
            else 0.0,
            "skipped_steps": totals["skipped_steps"],
            "choices": totals["choices"],
            "roots": totals["roots"],
            "network": network.fits() if network else None,
            "medians": {
                "compute_ms": 1e3 * compute,
                "buckets": [
                    {
                        "ready_ms": 1e3 * ready,
                        "compress_ms": 1e3 * compress,
                        "wire_ms": 1e3 * wire,
                        "decode_ms": 1e3 * decode,
                    }
                    for ready, compress, wire, decode in buckets
                ],
            },
            "emulated": self._engine.link.description if self._engine.link else None,
        }

    def log(self, *, step: int | None = None, **figures: float) -> None:
        """Writes figures of yours into the trace, for reports: log(loss=loss.item()), or
        log(accuracy=0.86) after an evaluation. Of the last finished step unless `step` says another
        one. Does nothing on ranks that write no trace, and does not communicate."""
        figures = checked_figures(figures)
        with self._lock:
            self._session.log(figures, step)

    def end_epoch(self) -> None:
        """An epoch is over: for policies that count in epochs. Every rank says so, between the same
        two steps. `micro_batches` does it by itself."""
        self._waits_for_epoch = False
        with self._lock:
            self._session.end_epoch()

    def micro_batches(self, loader: Iterable, scheduler=None) -> Iterator[MicroBatch]:
        """The batches of one epoch, as many to a step as the policy says (see the module
        micro_batches). Every rank's loader must have equally many. A policy that lets learning
        rates grow with the batch does it here; `scheduler` = the one that sets them, if any: its
        base rates grow, too."""
        self._waits_for_epoch = False

        def begin_step() -> int:
            with self._lock:
                batches, scale = self._session.batches_per_step, self._session.rate_scale
            scale_rates(self.optimizer, scheduler, scale)
            return batches

        return micro_batches(loader, begin_step, lambda: self._ddp().no_sync(), self.end_epoch)

    def state_dict(self) -> dict:
        """What this rank needs to go on where it stopped. Does not communicate."""
        with self._lock:
            step, residuals, memories, policy, progress = self._session.state()
        return {
            "version": 1,
            "rank": self._engine.rank,
            "ranks": self._engine.ranks,
            "step": step,
            "residuals": to_tensors(residuals),
            "memories": {method: to_tensors(memory) for method, memory in memories.items()},
            "policy": policy,
            "progress": progress,
        }

    def load_state_dict(self, state: dict) -> None:
        """Takes back what `state_dict` of this same rank gave. Does not communicate."""
        try:
            version, rank, ranks, step = (state[k] for k in ("version", "rank", "ranks", "step"))
            residuals = to_bytes(state["residuals"])
            memories = {
                method: to_bytes(memory) for method, memory in state.get("memories", {}).items()
            }
            policy = dict(state.get("policy", {}))
            progress = dict(state.get("progress", {}))
        except (KeyError, TypeError, AttributeError) as error:
            raise Error(
                "checkpoint", f"this is not a state_dict of a Tidegate handle: {error!r}"
            ) from error
        if version != 1:
            raise Error(
                "checkpoint", f"state_dict version {version}; this Tidegate reads version 1"
            )
        with self._lock:
            self._session.load(rank, ranks, step, residuals, memories, policy, progress)

    def detach(self) -> None:
        """Ends the exchanges. The model stays usable: DDP averages densely from here on."""
        self._close()
        if self._error is not None and not self._error_shown:
            self._error_shown = True
            raise self._error

    @property
    def attached(self) -> bool:
        return not self._closed

    # --- the autograd thread ---

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future:
        if self._closed:
            return average_densely(bucket, self._parent)
        rates = None
        if bucket.index() == 0:
            rates = [float(group["lr"]) for group in self.optimizer.param_groups]
            self._loss_scale = float(self._scaler.get_scale()) if self._scaler else 1.0
            self._steps += 1
            self._raise_after_backward()
        parameters = bucket.parameters()
        layout = tuple(map(id, parameters))
        layers = None
        if self._layouts.get(bucket.index()) != layout:
            self._layouts[bucket.index()] = layout
            layers = [
                (self._names[id(p)], p.numel(), p.shape[0] if p.dim() > 1 else 0)
                for p in parameters
            ]
        buffer, on_device, fetched = bucket.buffer(), None, None
        future = self._staging.future() if self._staging else torch.futures.Future()
        if self._staging and not buffer.is_sparse:
            on_device = buffer
            buffer, fetched = self._staging.fetch(bucket.index(), buffer)
        self._inbox.put(
            ReadyBucket(
                buffer,
                layers,
                bucket.is_last(),
                self._loss_scale,
                time.monotonic_ns(),
                future,
                on_device,
                fetched,
                rates,
            )
        )
        return future

    def _raise_after_backward(self) -> None:
        """An exception set on a future loses its type, and one raised here breaks DDP's reducer; so
        errors are raised by a callback that runs when DDP has finished this backward."""
        engine = torch.autograd.Variable._execution_engine

        def after_backward():
            if self._error is not None:
                self._error_shown = True
                raise self._error
            self._warn_without_epochs()

        try:
            engine.queue_callback(lambda: engine.queue_callback(after_backward))
        except RuntimeError:  # under join() the hook runs outside backward: raise on the next call
            after_backward()

    def _warn_without_epochs(self) -> None:
        if not self._waits_for_epoch or self._steps < LONG_EPOCH:
            return
        self._waits_for_epoch = False
        warnings.warn(
            f"the policy of {self.label!r} counts in epochs, and in {self._steps} steps none has "
            "ended, so it decides as at the start. Unless epochs are longer than that: call "
            "handle.end_epoch() after each, or set window=STEPS.",
            stacklevel=2,
        )

    # --- the exchange thread ---

    def _work(self) -> None:
        while self._take_bucket() or self._flying:
            if self._error is None:
                try:
                    self._issue()
                    if self._wait():
                        self._issue()  # its next round, or the statistics of the step
                except BaseException as error:  # whatever it is, nobody may be left waiting
                    self._fail(error)
            if self._error is not None:
                self._flying.clear()  # the engine keeps what is pending
                self._resolve(range(len(self._step)))

    def _take_bucket(self) -> bool:
        """Hands the next bucket to the session. Waits for one: until it comes when nothing is on
        the wire, a moment when something is, not at all when the step is complete. False when
        there will be no more."""
        if self._inbox_closed:
            return False
        try:
            if self._step_is_here():
                ready = self._inbox.get_nowait()
            else:
                ready = self._inbox.get(timeout=POLL if self._flying else None)
        except queue.Empty:
            return True
        if ready is None:
            self._inbox_closed = True
            return False
        self._step.append(ready)
        if self._error is None:
            try:
                self._submit(len(self._step) - 1, ready)
            except BaseException as error:
                self._fail(error)
        return True

    def _submit(self, index: int, ready: ReadyBucket) -> None:
        Staging.wait(ready.fetched)
        element = ELEMENTS.get(ready.buffer.dtype)
        with self._lock:
            if ready.rates is not None:
                self._session.set_learning_rates(ready.rates)
            if ready.buffer.is_sparse or element is None:
                self._session.submit_foreign(ready.last, ready.when)
                return
            if ready.layers is not None:
                self._session.lay_out(index, ready.layers)
            self._session.submit(
                ready.buffer.data_ptr(),
                ready.buffer.numel() * ready.buffer.element_size(),
                element,
                ready.loss_scale,
                ready.last,
                ready.when,
            )

    def _issue(self) -> None:
        while True:
            with self._lock:
                issue = self._session.next()
            if issue is None:
                return
            if issue.collective == "foreign":
                tensor = self._step[issue.bucket].buffer
                tensor.div_(self._engine.ranks)  # before the sum, as DDP does
                operation = self._engine.all_reduce(tensor, issue.text, issue.step)
            else:
                tensor = None
                operation = self._engine.start(issue)
                if issue.bucket >= 0:  # its memory may be DDP's: it must live as long
                    operation.tensors += (self._step[issue.bucket].buffer,)
            self._flying.append(Flying(issue.bucket, issue.round, operation, tensor))

    def _wait(self) -> bool:
        """Looks after the oldest collective, and waits for it if no bucket can come meanwhile. True
        when it has arrived."""
        if not self._flying:
            return False
        flying = self._looking_at = self._flying[0]
        nothing_can_come = self._step_is_here() or self._inbox_closed
        if not flying.operation.done(STEP_OF_WAIT if nothing_can_come else 0.0):
            if self._stopping.is_set():
                raise Error("peer", "the process ends while a collective is under way")
            if time.monotonic() - flying.operation.began > LONG_WAIT:
                self._progress.note_sometimes(self._position(flying))
            self._looking_at = None
            return False
        finite = flying.foreign is None or is_finite(flying.foreign)
        with self._lock:
            step = self._session.step
            self._session.complete(flying.bucket, flying.round, finite, flying.operation.prompt)
            finished = self._session.take_finished()
            step_ended = self._session.step != step
        self._looking_at = None
        self._flying.popleft()
        self._resolve(finished)
        if step_ended:
            self._progress.note_sometimes((step + 1, 0, 0))
        return True

    def _step_is_here(self) -> bool:
        """All buckets of the step have come: backward waits for them, so no other can."""
        return bool(self._step) and self._step[-1].last

    def _resolve(self, finished) -> None:
        for index in finished:
            ready = self._step[index]
            if ready.future.done():
                continue
            if ready.device_buffer is None:
                ready.future.set_result(ready.buffer)
            else:
                self._staging.give_back(ready.buffer, ready.device_buffer, ready.future)
        if self._step_is_here() and all(ready.future.done() for ready in self._step):
            self._step = []

    def _position(self, flying: Flying) -> tuple[int, int, int]:
        step = self._session.step
        if flying.bucket < 0:  # the statistics of the step before
            return (step, 0, 0)
        return (step, flying.bucket, flying.round)

    def _fail(self, error: BaseException) -> None:
        """Keeps the error for the user's thread, with all that is known about where it happened."""
        try:
            text = self._describe_failure(error)
            kind = error.kind if isinstance(error, Error) else "unsupported"
            self._session.note_fault(kind, text)
        except Exception as another:  # a report that fails must not hide what it reports
            text = f"{error}; and the report of it failed: {another!r}"
        if isinstance(error, Error):
            failure = Error(error.kind, text)
            failure.__cause__ = error
        else:  # not the network's fault: it keeps its type
            failure = error
            failure.add_note(text)
        self._error = failure

    def _describe_failure(self, error: BaseException) -> str:
        kind = error.kind if isinstance(error, Error) else type(error).__name__
        text = str(error) or repr(error)
        who = f"rank {self._engine.rank} of {self._engine.ranks}"
        flying = self._looking_at
        if flying is None:
            step = self._session.step
            self._progress.note((step, 0, 0), kind)
            return f"{who}, step {step}: {text}"
        position = self._position(flying)
        what = "statistics round" if flying.bucket < 0 else f"bucket {flying.bucket}"
        waited = time.monotonic() - flying.operation.began
        self._progress.note(position, f"{kind} in {flying.operation.text}")
        text = (
            f"{who} gave up in step {position[0]}, {what}, round {flying.round}, "
            f"{flying.operation.text}, after {waited:.1f} s: {text}."
        )
        if kind not in ("peer", "timeout"):
            return text
        # A broken connection is seen at once; give the healthy ranks time to say where they are.
        time.sleep(max(0.0, SETTLE - waited))
        return (
            f"{text} {self._progress.laggards(position)} Look at the logs of those ranks first; if "
            f"they were only slow, attach with a timeout above {self._engine.timeout:g} s."
        )

    def _close(self, exiting: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close)
        self._inbox.put(None)
        self._thread.join(JOIN)
        if self._thread.is_alive():
            self._stopping.set()
            self._thread.join(JOIN)
        self._session.note_end()
        self._engine.close(exiting, keep=(self._session, self))
