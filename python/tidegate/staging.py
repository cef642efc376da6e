# SPDX-License-Identifier: Apache-2.0
"""GPU buckets in pinned host memory, where the exchange can read them.

NEVER RUN ON A GPU: written from torch's documentation, for lack of one; the tests run it on the CPU
with streams and events replaced. Behind `experimental_cuda=True` until somebody has seen it work.
"""

import contextlib

import torch


class Staging:
    """Host copies of a model's buckets. Calls come from autograd's thread (fetch) and from the
    exchange thread (wait, give_back)."""

    def __init__(self, device: torch.device):
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._hosts: dict[int, torch.Tensor] = {}

    def future(self) -> torch.futures.Future:
        """One that makes whoever waits for it wait for this device as well."""
        if self._stream is None:
            return torch.futures.Future()
        return torch.futures.Future(devices=[self.device])

    def fetch(
        self, index: int, buffer: torch.Tensor
    ) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        """Begins to copy a bucket to the host. Returns the copy and an event to wait for."""
        host = self._hosts.get(index)
        if host is None or host.shape != buffer.shape or host.dtype != buffer.dtype:
            host = torch.empty(
                buffer.shape, dtype=buffer.dtype, pin_memory=self._stream is not None
            )
            self._hosts[index] = host
        host.copy_(buffer, non_blocking=True)  # on the stream that filled the bucket
        if self._stream is None:
            return host, None
        event = torch.cuda.Event()
        event.record()
        return host, event

    @staticmethod
    def wait(event: torch.cuda.Event | None) -> None:
        """Until the copy has arrived, outside of autograd's thread."""
        if event is not None:
            event.synchronize()

    def give_back(
        self, host: torch.Tensor, buffer: torch.Tensor, future: torch.futures.Future
    ) -> None:
        """Copies the mean back and completes the future behind that copy."""
        stream = (
            contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        )
        with stream:
            buffer.copy_(host, non_blocking=True)
            future.set_result(buffer)
