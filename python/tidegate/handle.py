# SPDX-License-Identifier: Apache-2.0
"""One model's exchanges: DDP's hook hands buckets to one background thread, which drives the C++
session and performs its collectives, so that backward goes on while buckets are on their way.

    autograd thread            exchange thread                         other ranks
    hook(bucket) --inbox-->    session.submit, next (compress)
                               engine.start ------------------------>  collective
    optimizer <---future---    session.complete (decode, add)
"""

import atexit
import hashlib
import queue
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _core, states
from .comm_state import CommState
from .engine import DTYPES, STEP_OF_WAIT, Engine, Operation, read_aside
from .errand import Errand
from .errors import Error
from .flush import flush
from .lookout import Lookout
from .micro_batches import MicroBatch, micro_batches, scale_rates
from .progress import Progress
from .recut import Layers, Layout, Recut, fits
from .staging import Staging

ELEMENTS = {dtype: name for name, dtype in DTYPES.items() if name != "uint8"}
# How soon an arrival is noticed while more buckets are to come: within this share of the time it
# has been under way, between these limits. Looking takes its time from backward, whose cores it
# shares: once in a millisecond, some per cent.
LATE, SOONEST, LATEST = 0.2, 0.001, 0.01  # seconds
LINGER = 0.5  # seconds
SETTLE = 1.3  # seconds after which every rank that waits has said where it is (see Lookout)
LONG_EPOCH = 1000  # steps after which a policy that counts in epochs should have heard of one
OUT_OF_MEMORY = (
    "this process is out of memory: what waits to be sent takes as much as all gradients in fp32. "
    "Start fewer processes on this machine, or take a method that keeps nothing back, such as bf16"
)
JOIN = 5.0  # seconds to let the thread finish what is under way when the handle is closed


class Bucket(Protocol):
    """What of DDP's GradBucket is used; other frameworks have none."""

    def index(self) -> int: ...
    def buffer(self) -> torch.Tensor: ...
    def parameters(self) -> list[torch.Tensor]: ...
    def is_last(self) -> bool: ...


@dataclass
class ReadyBucket:
    """What the hook hands over. The future and the buffer stay alive until the mean is in place."""

    buffer: torch.Tensor  # in host memory
    layers: Layers | None  # only when they changed
    last: bool
    loss_scale: float
    when: int
    processed: tuple[int, int]  # processor time so far in nanoseconds: of this thread, of all
    future: torch.futures.Future
    device_buffer: torch.Tensor | None = None  # DDP's own, if it is on a device
    fetched: torch.cuda.Event | None = None  # the event of the copy from there
    rates: list[float] | None = None  # of the optimizer's groups; with the first bucket of a step


@dataclass
class Flying:
    """A collective under way, and the place it has in the step."""

    bucket: int
    round: int
    operation: Operation
    foreign: torch.Tensor | None  # whether its result is finite, the session cannot see


def is_foreign(buffer: torch.Tensor) -> bool:
    """The session cannot average it: torch does."""
    return buffer.is_sparse or buffer.dtype not in ELEMENTS


def is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor._values() if tensor.is_sparse else tensor).all())


def compressible_sizes(model: torch.nn.Module) -> dict[str, int]:
    """The parameters that Tidegate averages: not those whose gradients are sparse, as DDP tells
    them, or of a type it does not know."""
    sparse = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.sparse
    }
    return {
        name: parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.dtype in ELEMENTS and id(parameter) not in sparse
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


def average_densely(bucket: Bucket, group: dist.ProcessGroup | None) -> torch.futures.Future:
    """What DDP would do without a hook."""
    buffer = bucket.buffer().mul_(1.0 / dist.get_world_size(group))
    work = dist.all_reduce(buffer, group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


class Handle:
    """What `tidegate.attach` returns. `label` and `optimizer` are those it was given; `disabled`
    says that TIDEGATE_DISABLE=1 has turned everything off."""

    disabled = False

    def __init__(
        self,
        ddp: DistributedDataParallel | CommState,
        session: "_core.Session",
        engine: Engine,
        scaler: torch.amp.GradScaler | None,
        optimizer: torch.optim.Optimizer,
        label: str,
        staging: Staging | None = None,
    ) -> None:
        self.label = label
        self.optimizer = optimizer
        self._compared = False  # what ranks have loaded, since it may have changed
        self._session = session
        self._engine = engine
        self._scaler = scaler
        self._staging = staging  # for models on a device
        self._names = {id(p): name for name, p in ddp.module.named_parameters()}
        self._ids = {name: key for key, name in self._names.items()}
        self._sizes = compressible_sizes(ddp.module)
        self._ddp = weakref.ref(ddp)  # which holds on to this handle
        self._parent = ddp.process_group
        self._progress = Progress(engine.group, label, engine.rank, engine.ranks)
        self._lookout = engine.lookout = Lookout(self._progress, session.note_slow)
        self._layouts: dict[int, tuple[int, ...]] = {}
        self._inbox: queue.SimpleQueue[ReadyBucket | Errand | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # the session belongs to one thread at a time
        self._error: BaseException | None = (
            None  # once there is one, it stays: the ranks are out of step
        )
        self._error_shown = False
        self._closed = False
        self._leaving = False  # whoever waited for what is under way has gone
        self._inbox_closed = False
        self._paused = False
        self._in_backward = False
        self._errands: deque[Errand] = deque()  # to be run as soon as nothing is under way
        self._abandoned: Errand | None = None  # Ctrl-C took away who waited for it
        self._step: list[ReadyBucket] = []  # the buckets of the present step, as DDP has them
        self._buffers: list[torch.Tensor] = []  # the same, as the session has them
        self._saved_layout: Layout | None = None  # what DDP's next buckets are to be cut to
        self._recut: Recut | None = None  # of the present step
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

    def micro_batches(self, loader: Iterable, scheduler: Any = None) -> Iterator[MicroBatch]:
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

        return micro_batches(loader, begin_step, lambda: self._model().no_sync(), self.end_epoch)

    def state_dict(self) -> dict:
        """What this rank needs to go on where it stopped; every rank has its own. Between two
        steps. Does not communicate."""
        return states.to_dict(states.key_of(self.rank, self.ranks), self._state())

    def load_state_dict(self, state: dict, strict: bool = True) -> None:
        """Takes back what `state_dict` gave on this same rank, or what `mean_state_dict` gave on
        any; of all ranks' states together the mean, if they are not as many as now. Parameters that
        were added or removed since are an error, or if not strict a warning. Between two steps.
        Does not communicate."""
        self._adopt(states.from_dict(state, self.rank, self.ranks), strict)

    def mean_state_dict(self) -> dict:
        """One state for all ranks: for those who keep that of rank 0 only, or go on with another
        number of ranks. What all ranks together still owe is preserved; the bits of what follows
        are not. Between two steps; all ranks must call it."""
        everyone = self._gather(self._state().to_bytes(), "mean_state_dict")
        mean = _core.State.mean([_core.State.from_bytes(state) for state in everyone])
        return states.to_dict(states.MEAN, mean)

    def flush(self) -> bool:
        """For the end of training: puts the mean of what still waits to be sent into the gradients,
        for one last `optimizer.step()`, and leaves nothing waiting. Parameters that nothing waits
        for have no gradient then. Whether anything waited, the same on all ranks. Gradients are
        not scaled: not for a GradScaler. Between two steps; all ranks must call it."""
        module = self._model().module
        return self._between_steps(lambda: flush(module, self._session, self._engine))

    def pause(self) -> None:
        """From the next step on DDP averages densely by itself, and what waits to be sent stays
        where it is. On every rank, between the same two steps."""
        self._paused = True

    def resume(self) -> None:
        """The end of a pause."""
        self._paused = False

    def detach(self) -> None:
        """Ends the exchanges. The model stays usable: DDP averages densely from here on."""
        self._close()
        if self._error is not None and not self._error_shown:
            self._error_shown = True
            raise self._error

    @property
    def rank(self) -> int:
        """Of this process, among those that share the model."""
        return self._engine.rank

    @property
    def ranks(self) -> int:
        """How many processes share the model."""
        return self._engine.ranks

    @property
    def attached(self) -> bool:
        """Whether gradients still go through Tidegate: until `detach`."""
        return not self._closed

    # --- between two steps ---

    def _model(self) -> DistributedDataParallel | CommState:
        model = self._ddp()
        if model is None:
            raise Error(
                "config",
                f"the model of the handle {self.label!r} is gone; keep it while the handle is used",
            )
        return model

    def _between_steps(self, action: Callable[[], Any]) -> Any:
        """Lets the exchange thread do something when nothing is under way; returns its result."""
        if self._in_backward:
            raise Error(
                "checkpoint",
                f"rank {self.rank} is in the middle of a step: backward has not ended, or ended "
                "with an exception. States are saved and loaded between two steps; after an "
                "exception load the last checkpoint into a new handle",
            )
        errand = Errand(action)
        self._inbox.put(errand)
        try:
            return errand.wait(self._thread)
        finally:
            if not errand.finished:
                self._abandoned = errand

    def _gather(self, value: Any, what: str = "a comparison") -> list:
        """Every rank's value, in rank order. Collective. what = what the user has called."""

        def gather() -> list:
            try:
                return self._engine.gather_objects(value, what)
            except Error as error:
                if error.kind not in ("peer", "timeout"):
                    raise
                raise Error(
                    error.kind,
                    f"rank {self.rank} waits in {what} in vain for other ranks: every rank must "
                    f"call it, between the same two steps and in the same order. {error}",
                ) from error

        return self._between_steps(gather)

    def _state(self) -> "_core.State":
        return self._between_steps(self._session.state)

    def _adopt(self, state: "_core.State", strict: bool = True) -> None:
        """Goes on from a state, or raises and leaves everything as it is."""
        misfit = states.adapt(state, self._sizes, strict)

        def load() -> None:
            self._session.load(state)
            self._compared = False
            self._layouts.clear()  # the next step brings its layers, and
            self._saved_layout = state.layout or None  # is cut to these

        self._between_steps(load)
        if misfit and self.rank == 0:
            states.warn_of(misfit)

    # --- the autograd thread ---

    def hook(self, bucket: Bucket) -> torch.futures.Future:
        """What DDP calls for every bucket; `tidegate.comm_hook` has it as a pair with its state."""
        if self._closed or self._paused:
            return average_densely(bucket, self._parent)
        rates = None
        if bucket.index() == 0:
            self._in_backward = True
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
                # With a device, this is not the thread that trains, and processors matter less.
                (0, 0) if self._staging else (time.thread_time_ns(), time.process_time_ns()),
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

        def after_backward() -> None:
            self._in_backward = False
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

    def compare_answers(self, step: int, bucket: int, answer: str) -> None:
        """What a policy of the user's own has answered, with the other ranks, before anything is
        sent: gloo ends a process that receives more than it expects."""
        tag = hashlib.sha256(answer.encode()).hexdigest()
        where = f"step {step}, bucket {bucket}: "
        operation, records = self._engine.start_aside(where + answer, tag)
        operation.text = "comparison of answers"
        self._looking_at = Flying(bucket, 1, operation, None)  # it belongs to the first round
        while not operation.done(STEP_OF_WAIT):
            self._engine.check_stopping()
            self._lookout.wait((step, bucket, 1), operation.began)
        self._looking_at = None
        asides = [read_aside(record) for record in records]
        different = [rank for rank, aside in enumerate(asides) if aside != asides[0]]
        if not different:
            return
        words = [what.removeprefix(where) for _, what in asides]
        other = different[0]
        raise Error(
            "config",
            f"ranks decide differently: rank 0 [{words[0]}], rank {other} [{words[other]}]. A "
            "policy may use only what it is asked and what it remembers of it: no clocks, no "
            "random numbers, nothing of its own rank",
        )

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
                self._resolve(self._step)
            self._run_errands()

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
                ready = self._inbox.get(timeout=self._until_next_look())
        except queue.Empty:
            return True
        if ready is None:
            self._inbox_closed = True
            return False
        if isinstance(ready, Errand):
            self._errands.append(ready)
            return True
        self._step.append(ready)
        if self._error is None:
            try:
                Staging.wait(ready.fetched)
                for bucket in self._arrange(ready):
                    self._submit(bucket)
            except BaseException as error:
                self._fail(error)
        return True

    def _until_next_look(self) -> float | None:
        """Seconds; None if there is nothing to look for."""
        if not self._flying:
            return None
        under_way = time.monotonic() - self._flying[0].operation.began
        return min(max(SOONEST, LATE * under_way), LATEST)

    def _run_errands(self) -> None:
        """What the user's threads asked for, once nothing is under way any more."""
        while self._errands and (self._error is not None or not (self._flying or self._step)):
            errand = self._errands.popleft()
            if self._error is None:
                errand.run()
            else:
                errand.fail(self._error)

    def _arrange(self, ready: ReadyBucket) -> list[ReadyBucket]:
        """The buckets for the session when DDP's next one has come: this one; but in the first step
        after a state was loaded all at once, when all are here, cut as they were in that state."""
        if self._saved_layout is None:
            return [ready]
        if not ready.last:
            return []
        layout, self._saved_layout = self._saved_layout, None
        given = [
            ([] if is_foreign(bucket.buffer) else bucket.layers or [], bucket.buffer)
            for bucket in self._step
        ]
        # Buckets that cannot be cut so go as they come: what waits moves along, by name.
        if [layers for layers, _ in given] == layout or not fits(layout, given):
            return self._step
        self._recut = Recut(layout, given)
        self._layouts = {
            index: tuple(self._ids[name] for name, _, _ in layers)
            for index, layers in enumerate(layout)
        }
        pieces = [
            replace(ready, buffer=buffer, layers=layers, last=False, rates=None)
            for layers, buffer in zip(layout, self._recut.buffers, strict=True)
        ]
        pieces[0].rates = self._step[0].rates
        pieces[-1].last = True
        return pieces

    def _compare_loaded(self) -> None:
        """Ranks that go on from different moments would drift apart. Once after a state may have
        been loaded, before anything of the next step."""
        self._issue()  # what belongs to the step before
        self._compared = True
        loaded = self._engine.gather_objects(self._session.loaded, "the next step")
        others = [rank for rank, theirs in enumerate(loaded) if theirs != loaded[0]]
        if others:
            raise Error(
                "checkpoint",
                f"rank {others[0]} has loaded another state than rank 0: [{loaded[others[0]]}] "
                f"instead of [{loaded[0]}]; ranks that differ from rank 0: {others}. Every rank "
                "must load its state of the same checkpoint",
            )

    def _submit(self, ready: ReadyBucket) -> None:
        if not self._compared:
            self._compare_loaded()
        index = len(self._buffers)
        self._buffers.append(ready.buffer)
        with self._lock:
            if ready.rates is not None:
                self._session.set_learning_rates(ready.rates)
            if is_foreign(ready.buffer):
                self._session.submit_foreign(ready.last, ready.when, *ready.processed)
                return
            if ready.layers is not None:
                self._session.lay_out(index, ready.layers)
            self._session.submit(
                ready.buffer.data_ptr(),
                ready.buffer.numel() * ready.buffer.element_size(),
                ELEMENTS[ready.buffer.dtype],
                ready.loss_scale,
                ready.last,
                ready.when,
                *ready.processed,
            )

    def _issue(self) -> None:
        while True:
            with self._lock:
                issue = self._session.next()
            if issue is None:
                return
            if issue.collective == "foreign":
                tensor = self._buffers[issue.bucket]
                tensor.div_(self._engine.ranks)  # before the sum, as DDP does
                operation = self._engine.all_reduce(tensor, issue.text, issue.step)
            else:
                tensor = None
                operation = self._engine.start(issue)
                if issue.bucket >= 0:  # its memory may be DDP's: it must live as long
                    operation.tensors += (self._buffers[issue.bucket],)
            self._flying.append(Flying(issue.bucket, issue.round, operation, tensor))

    def _wait(self) -> bool:
        """Looks after the oldest collective, and waits for it if no bucket can come meanwhile. True
        when it has arrived."""
        if not self._flying:
            return False
        flying = self._looking_at = self._flying[0]
        nothing_can_come = self._step_is_here() or self._inbox_closed
        if not flying.operation.done(STEP_OF_WAIT if nothing_can_come else 0.0):
            self._engine.check_stopping()
            self._lookout.wait(self._position(flying), flying.operation.began)
            self._looking_at = None
            return False
        finite = flying.foreign is None or is_finite(flying.foreign)
        with self._lock:
            step = self._session.step
            self._session.complete(flying.bucket, flying.round, finite, flying.operation.prompt)
            finished = self._session.take_finished()
            step_ended = self._session.step != step
            notices = self._session.take_notices() if step_ended else []
        self._looking_at = None
        self._flying.popleft()
        if self._recut is None:
            self._resolve([self._step[bucket] for bucket in finished])
        elif self._recut.finish(len(finished)):
            self._resolve(self._step)
        if step_ended:
            self._lookout.end_step(step + 1)
            self._lookout.show(notices)
        return True

    def _step_is_here(self) -> bool:
        """All buckets of the step have come: backward waits for them, so no other can."""
        return bool(self._step) and self._step[-1].last

    def _resolve(self, finished: list[ReadyBucket]) -> None:
        for ready in finished:
            if ready.future.done():
                continue
            if ready.device_buffer is None or self._staging is None:
                ready.future.set_result(ready.buffer)
            else:
                self._staging.give_back(ready.buffer, ready.device_buffer, ready.future)
        if self._step_is_here() and all(ready.future.done() for ready in self._step):
            self._step, self._buffers, self._recut = [], [], None

    def _position(self, flying: Flying) -> tuple[int, int, int]:
        step = self._session.step
        if flying.bucket < 0:  # the statistics of the step before
            return (step, 0, 0)
        return (step, flying.bucket, flying.round)

    def _fail(self, error: BaseException) -> None:
        """Keeps the error for the user's thread, with all that is known about where it happened."""
        if self._leaving and self._engine.stopping.is_set():
            self._error, self._error_shown = error, True  # others hear that this rank has left
            return
        try:
            text = self._describe_failure(error)
            kind = error.kind if isinstance(error, Error) else "unsupported"
            self._session.note_fault(kind, text)
        except Exception as another:  # a report that fails must not hide what it reports
            text = f"{error}; and the report of it failed: {another!r}"
        failure: BaseException
        if isinstance(error, Error):
            failure = Error(error.kind, text)
            failure.__cause__ = error
        else:  # not the network's fault: it keeps its type
            failure = error
            failure.add_note(text)
        # Rank 0 may keep the store: the others should find it there. A store that does not answer
        # is not kept here, and has cost the time already.
        if self._engine.rank == 0 and not self._progress.silent:
            time.sleep(LINGER)
        self._error = failure

    def _describe_failure(self, error: BaseException) -> str:
        kind = error.kind if isinstance(error, Error) else type(error).__name__
        text = OUT_OF_MEMORY if isinstance(error, MemoryError) else str(error) or repr(error)
        who = f"rank {self._engine.rank} of {self._engine.ranks}"
        flying = self._looking_at
        if flying is None:
            step = self._session.step
            self._progress.tell_failure((step, 0, 0), kind, "", text)
            return f"{who}, step {step}: {text}"
        position = self._position(flying)
        what = "statistics round" if flying.bucket < 0 else f"bucket {flying.bucket}"
        waited = time.monotonic() - flying.operation.began
        self._progress.tell_failure(position, kind, f" in {flying.operation.text}", text)
        text = (
            f"{who} gave up in step {position[0]}, {what}, round {flying.round}, "
            f"{flying.operation.text}, after {waited:.1f} s: {text.rstrip('.')}."
        )
        if kind not in ("peer", "timeout"):
            return text
        cause = self._progress.find_cause(position)
        # A broken connection is seen at once: the other ranks get time to say what they know, and
        # are asked all the while, because whoever keeps the store may leave.
        while cause is None and time.monotonic() - flying.operation.began < SETTLE:
            time.sleep(STEP_OF_WAIT)
            cause = self._progress.find_cause(position)
        if cause is not None:
            known = "" if cause.text in text else f" {cause.text}."
            return f"{text}{known} Look at the log of that rank first."
        return (
            f"{text} {self._progress.laggards(position)} Look at the logs of those ranks first; if "
            f"they were only slow, attach with a timeout above {self._engine.timeout:g} s."
        )

    def _broken_off(self) -> bool:
        """By an exception, such as Ctrl-C, in the middle of a step, of a save or of a load: what is
        under way then will not be used."""
        abandoned = self._abandoned is not None and not self._abandoned.finished
        return abandoned or self._in_backward

    def _close(self, exiting: bool = False) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self._close)
        self._inbox.put(None)
        broken_off = self._broken_off()
        if not broken_off:
            self._thread.join(JOIN)
        failed = self._error is not None
        if self._thread.is_alive():
            self._leaving = exiting or broken_off
            self._engine.stopping.set()
            self._thread.join(JOIN)
        if self._error is None or (self._leaving and not failed):
            self._progress.tell_leave(self._session.step)
        self._session.note_end()
        self._engine.close(exiting, keep=(self._session, self))
