# SPDX-License-Identifier: Apache-2.0
"""One step's buckets in the layout of another time.

A DDP that was just made has its whole model in one bucket, and cuts it in the order of its first
backward from the second step on. A job that is resumed would so exchange its first step otherwise
than one that was never stopped; hence its buckets are cut to those that were saved.
"""

import torch

Layers = list[tuple[str, int, int]]  # name, elements, rows
Layout = list[Layers]  # bucket by bucket; one that Tidegate does not average has no layers
Given = list[tuple[Layers, torch.Tensor]]  # DDP's buckets, in the same way


def fits(layout: Layout, given: Given) -> bool:
    """Whether the buckets that DDP gives can be cut to the layout: the same layers of the same
    sizes, and none that would have to hold numbers of two types."""
    types = {layer: buffer.dtype for layers, buffer in given for layer in layers}
    wanted = [layer for layers in layout for layer in layers]
    return (
        sorted(wanted) == sorted(layer for layers, _ in given for layer in layers)
        and all(len({types[layer] for layer in layers}) <= 1 for layers in layout)
        and sum(not layers for layers in layout) == sum(not layers for layers, _ in given)
    )


class Recut:
    """Copies of DDP's buckets in a layout that fits them."""

    def __init__(self, layout: Layout, given: Given):
        self.layout = layout
        where: dict[str, torch.Tensor] = {}
        foreign = []
        for layers, buffer in given:
            parts = buffer.split([elements for _, elements, _ in layers]) if layers else ()
            where.update(zip((name for name, _, _ in layers), parts, strict=True))
            if not layers:
                foreign.append(buffer)
        self._parts = [[where[name] for name, _, _ in layers] for layers in layout]
        # What Tidegate does not average keeps no state: its order does not matter.
        self.buffers = [torch.cat(p) if p else foreign.pop(0) for p in self._parts]
        self._waiting = len(layout)

    def finish(self, buckets: int) -> bool:
        """So many more buckets hold their means. True when that was the last: all are in DDP's."""
        self._waiting -= buckets
        if self._waiting > 0:
            return False
        for parts, buffer in zip(self._parts, self.buffers, strict=True):
            means = buffer.split([part.numel() for part in parts]) if parts else ()
            for part, mean in zip(parts, means, strict=True):
                part.copy_(mean)
        return True
