# SPDX-License-Identifier: Apache-2.0
"""The gradients of all virtual workers, in buckets, as DDP would lay them out in each process."""

import torch

from .bucket_table import Table
from .errors import Error


class Gradients:
    def __init__(self, ranks: int, parameters: dict[str, torch.nn.Parameter], table: Table):
        self._parameters = [parameters[name] for bucket in table for name in bucket]
        self._buckets = [
            [torch.zeros(sum(parameters[n].numel() for n in names)) for names in table]
            for _ in range(ranks)
        ]
        self._views = [  # of every rank, one per parameter
            [
                view
                for buffer, names in zip(buffers, table, strict=True)
                for view in _views(buffer, [parameters[name] for name in names])
            ]
            for buffers in self._buckets
        ]
        self._absent: list[set[int]] = [
            set() for _ in range(ranks)
        ]  # parameters without a gradient

    def clear(self) -> None:
        """No parameter has a gradient: backward will put its own there, without adding."""
        for parameter in self._parameters:
            parameter.grad = None

    def collect(self, rank: int) -> None:
        """What backward left at the parameters becomes the gradient of this rank."""
        views, found = self._views[rank], [p.grad for p in self._parameters]
        self._absent[rank] = {index for index, grad in enumerate(found) if grad is None}
        if self._absent[rank]:
            torch._foreach_zero_([views[index] for index in self._absent[rank]])
            views = [view for view, grad in zip(views, found, strict=True) if grad is not None]
        grads = [grad for grad in found if grad is not None]
        if any(grad.is_sparse for grad in grads):
            raise Error("unsupported", "sparse gradients: a virtual cluster takes dense ones only")
        torch._foreach_copy_(views, grads)

    def elements(self) -> list[int]:
        """Of every bucket."""
        return [buffer.numel() for buffer in self._buckets[0]]

    def submit(self, sessions: list, ready: list[int]) -> None:
        """ready = when each bucket is, on the sessions' clock."""
        for session, buffers in zip(sessions, self._buckets, strict=True):
            for buffer, when in zip(buffers, ready, strict=True):
                last = buffer is buffers[-1]
                session.submit(buffer.data_ptr(), 4 * buffer.numel(), last=last, ready=when)

    def hand_out(self) -> None:
        """The mean, of which every rank has the same, becomes the gradient of the parameters. Those
        that no worker has used get none, as with DDP: an optimizer must not touch them."""
        for parameter, mean in zip(self._parameters, self._views[0], strict=True):
            parameter.grad = mean
        for index in set.intersection(*self._absent):
            self._parameters[index].grad = None

    def check_equal(self) -> None:
        for rank, buffers in enumerate(self._buckets):
            for index, buffer in enumerate(buffers):
                if not torch.equal(buffer, self._buckets[0][index]):
                    raise Error("numeric", f"rank {rank} differs from rank 0: bucket {index}")


def _views(buffer: torch.Tensor, parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Parts of a bucket, each with the shape of its parameter and, as DDP has it, its strides."""
    views, at = [], 0
    for parameter in parameters:
        part = buffer[at : at + parameter.numel()]
        if torch.ops.aten.is_non_overlapping_and_dense(parameter):
            views.append(part.as_strided(parameter.shape, parameter.stride(), at))
        else:
            views.append(part.view(parameter.shape))
        at += parameter.numel()
    return views
