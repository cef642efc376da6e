# SPDX-License-Identifier: Apache-2.0
"""What a virtual cluster trains. One file per task that comes with Tidegate."""

from .find import TASKS, find
from .task import Batches, Task

__all__ = ["TASKS", "Batches", "Task", "find"]
