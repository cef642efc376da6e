# SPDX-License-Identifier: Apache-2.0
"""Tidegate: data-parallel training on networks that are slow, shared or changing.

model = DDP(model)
handle = tidegate.attach(model, optimizer, policy="fixed", method="topk", ratio=0.01)
"""

from importlib.metadata import version

from . import policies
from .attach import attach
from .comm_hook import comm_hook
from .errors import Error
from .handle import Handle
from .launchers import set_rendezvous
from .load import load
from .own_policy import Choice, Decision
from .save import save
from .tasks import Task
from .virtual_cluster import VirtualCluster

__version__ = version("tidegate")
__all__ = [
    "Choice",
    "Decision",
    "Error",
    "Handle",
    "Task",
    "VirtualCluster",
    "attach",
    "comm_hook",
    "load",
    "policies",
    "save",
    "set_rendezvous",
]
