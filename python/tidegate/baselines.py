# SPDX-License-Identifier: Apache-2.0
"""What Tidegate is compared with: DDP's gradients averaged by a plain all-reduce in fp32 or bf16.

On the same engine and the same emulated link, and with nothing else in the way: no session, no
statistics. A bucket's all-reduce starts as soon as the bucket is ready, on the thread that runs
backward; another thread waits for the buckets in order, so that backward goes on meanwhile.
"""

import atexit
import queue
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .engine import DTYPES, STEP_OF_WAIT, Engine, Link, Operation
from .errors import Error

# Buffer, message, operation, future.
Waiting = tuple[torch.Tensor, torch.Tensor, Operation, torch.futures.Future]


class AllReduceHook:
    """Registers itself with a DDP model. Every rank makes one, in the same order."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        element: str,
        timeout: float,
        link: Link | None = None,
    ) -> None:
        self.bytes_sent = 0.0
        self._step = -1  # before the first one
        self._engine = Engine(ddp.process_group, timeout, link)
        self._dtype = DTYPES[element]
        self._error: Error | None = None
        self._closing = False
        self._waiting: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()  # None at the end
        self._thread = threading.Thread(target=self._work, name=f"all-reduce {element}")
        self._thread.daemon = True
        self._thread.start()
        atexit.register(self.close)
        ddp.register_comm_hook(self, _all_reduce)

    def start(self, bucket: dist.GradBucket) -> torch.futures.Future:
        if bucket.index() == 0:
            self._step += 1
            self._raise_after_backward()
        buffer = bucket.buffer()
        future: torch.futures.Future = torch.futures.Future()
        try:
            message = self._message(buffer)
            text = f"all-reduce of bucket {bucket.index()}"
            operation = self._engine.all_reduce(message, text, self._step)
            self._waiting.put((buffer, message, operation, future))
            # A ring: every rank sends N-1 parts of 1/N, twice.
            self.bytes_sent += 2 * (1 - 1 / self._engine.ranks) * message.nbytes
        except BaseException as error:  # an error that leaves the hook breaks DDP's reducer
            self._fail(error)
            future.set_result(buffer)
        return future

    def close(self) -> None:
        atexit.unregister(self.close)
        self._closing = True
        self._waiting.put(None)
        self._thread.join()
        self._engine.close(keep=(self,))

    def _message(self, buffer: torch.Tensor) -> torch.Tensor:
        """Divided before the sum, as DDP and its own bf16 hook do."""
        if self._dtype == buffer.dtype:
            return buffer.mul_(1 / self._engine.ranks)
        return buffer.to(self._dtype).div_(self._engine.ranks)

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            buffer, message, operation, future = item
            try:
                while self._error is None and not operation.done(STEP_OF_WAIT):
                    if self._closing:
                        raise Error("peer", "the process ends while an all-reduce is under way")
                if message is not buffer:
                    buffer.copy_(message)
            except BaseException as error:  # whatever it is, backward may not be left waiting
                self._fail(error)
            future.set_result(buffer)

    def _fail(self, error: BaseException) -> None:
        kind = error.kind if isinstance(error, Error) else "peer"
        self._error = self._error or Error(kind, f"rank {self._engine.rank}: {error}")

    def _raise_after_backward(self) -> None:
        """Raised in the hook or set on a future, an error breaks DDP or loses its type; a callback
        queued from a callback runs after DDP has finished."""
        engine = torch.autograd.Variable._execution_engine

        def after_backward() -> None:
            if self._error is not None:
                raise self._error

        engine.queue_callback(lambda: engine.queue_callback(after_backward))


def _all_reduce(
    state: AllReduceHook, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    return state.start(bucket)
