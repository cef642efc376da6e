# SPDX-License-Identifier: Apache-2.0
"""FSDP2 with replicas (HSDP): FSDP shards inside each replica, and Tidegate averages between them,
where networks are slow.

FSDP's own HSDP calls its all-reduce hook when it has reduced already. So the model is sharded over
one dimension of the mesh, and averaged over the other one here:

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    handle = attach(model, optimizer, mesh["replica"].get_group())

The hook is synchronous: FSDP waits for every module's exchange before it goes on with backward.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from ..comm_hook import comm_hook
from ..errors import Error
from ..handle import Handle


class _ReducedBucket:
    """What FSDP has reduced for one module, as DDP would hand it to a hook."""

    def __init__(self, index: int, buffer: torch.Tensor, parameters: list, last: bool):
        self._all = (index, buffer, parameters, last)

    def index(self) -> int:
        return self._all[0]

    def buffer(self) -> torch.Tensor:
        return self._all[1]

    def parameters(self) -> list:
        return self._all[2]

    def is_last(self) -> bool:
        return self._all[3]


class ShardedHandle:
    """A handle for the shards of this rank. Its state is one of this process: others with the same
    rank among the replicas have other shards."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        replicas: dist.ProcessGroup,
        options: dict,
    ) -> None:
        shards = _shards(model)
        everything = nn.ParameterDict()
        for of_module in shards.values():
            everything.update(of_module)
        self._state, _ = comm_hook(everything, optimizer, process_group=replicas, **options)
        self._handle = self._state.handle
        self._modules = len(shards)
        mesh = next(p.device_mesh for p in model.parameters() if hasattr(p, "device_mesh"))
        self._shard = f"shard {mesh.get_local_rank()} of {mesh.size()}"
        self._seen: list[str] = []  # modules of the present step
        names = {module: name for name, module in model.named_modules()}
        for module, of_module in shards.items():
            self._register(module, names[module] or "the root", list(of_module.values()))

    def _register(self, module: FSDPModule, name: str, parameters: list) -> None:
        elements = sum(parameter.numel() for parameter in parameters)

        def hook(reduced: torch.Tensor) -> None:
            if name in self._seen or reduced.numel() != elements:
                raise Error(
                    "unsupported",
                    f"FSDP module {name} came with {reduced.numel()} of {elements} elements, after "
                    f"{self._seen}: every parameter that requires a gradient must get one in every "
                    "step. Set requires_grad=False where none comes",
                )
            self._seen.append(name)
            last = len(self._seen) == self._modules
            bucket = _ReducedBucket(len(self._seen) - 1, reduced, parameters, last)
            if last:
                self._seen = []
            self._handle.hook(bucket).wait()

        module.set_all_reduce_hook(hook)

    def stats(self) -> dict:
        """As `Handle.stats`, of the shards of this rank."""
        return self._handle.stats()

    def end_epoch(self) -> None:
        """As `Handle.end_epoch`."""
        self._handle.end_epoch()

    def state_dict(self) -> dict:
        """That of this process, named after its shard as well: some checkpoints keep one value of
        every key."""
        return {self._shard: self._handle.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """Takes back what `state_dict` gave in this same process."""
        if self._shard not in state:
            raise Error(
                "checkpoint",
                f"this is the state of {', '.join(map(str, state)) or 'nothing'}, but this process "
                f"holds {self._shard}: every process loads what it saved itself, and a model that "
                "is sharded otherwise starts without what waited",
            )
        self._handle.load_state_dict(state[self._shard])
        # Modules are the same as before, and wait for one another: there is nothing to cut.
        if isinstance(self._handle, Handle):
            self._handle._saved_layout = None

    def detach(self) -> None:
        """Replicas are averaged densely from here on."""
        self._handle.detach()


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    replicas: dist.ProcessGroup,
    **options: Any,
) -> ShardedHandle:
    """Averages what FSDP has reduced inside a replica over `replicas`: the group of the ranks that
    hold the same shard. Takes the arguments of `tidegate.attach`. All ranks must call it. Replicas
    must start from the same parameters: FSDP broadcasts none between them."""
    return ShardedHandle(model, optimizer, replicas, options)


def _shards(model: nn.Module) -> dict[FSDPModule, dict[str, nn.Parameter]]:
    """By module of FSDP: its parameters, as they lie in what it reduces."""
    owners: dict[FSDPModule, dict[str, nn.Parameter]] = {}
    _collect(model, "", None, owners, set())
    owners = {module: shards for module, shards in owners.items() if shards}
    if not owners:
        raise Error(
            "config",
            f"no module of this {type(model).__name__} was sharded by fully_shard() and has "
            "parameters that require a gradient; call fully_shard(model, mesh=mesh['shard']) first",
        )
    return owners


def _collect(
    module: nn.Module, path: str, owner: FSDPModule | None, owners: dict, seen: set
) -> None:
    """In the order in which FSDP does."""
    if isinstance(module, FSDPModule):
        owner = module
        owners[owner] = {}
    for name, parameter in module.named_parameters(recurse=False):
        if owner is None or not parameter.requires_grad or id(parameter) in seen:
            continue
        seen.add(id(parameter))
        # ParameterDict takes no dots.
        owners[owner][f"{path}{name}".replace(".", "/")] = _stand_in(parameter, f"{path}{name}")
    for name, child in module.named_children():
        _collect(child, f"{path}{name}.", owner, owners, seen)


def _stand_in(parameter: Any, name: str) -> nn.Parameter:
    """Of the size of this rank's part, without its memory."""
    mesh, placements = parameter.device_mesh, parameter.placements
    if mesh.ndim != 1:
        raise Error(
            "unsupported",
            f"{name} is spread over a mesh of {mesh.ndim} dimensions; FSDP then averages replicas "
            "itself, before its hook. Call fully_shard(model, mesh=mesh['shard']): one dimension",
        )
    shape = list(parameter.shape)
    dimension = placements[0].dim
    shape[dimension] = math.ceil(shape[dimension] / mesh.size())
    return nn.Parameter(torch.zeros(1, dtype=parameter.dtype).expand(math.prod(shape)).view(shape))
