# SPDX-License-Identifier: Apache-2.0
"""Tasks by name: those that come with Tidegate, and the user's own as "module:function"."""

import importlib
import inspect
from collections.abc import Callable

from ..errors import Error
from .task import Task

TASKS = {
    "fashion-mnist": "tidegate.tasks.fashion_mnist:make_task",
    "char-gpt": "tidegate.tasks.char_gpt:make_task",
    "char-lstm": "tidegate.tasks.char_lstm:make_task",
}


def find(task: Task | Callable[..., Task] | str, seed: int = 0, steps: int | None = None) -> Task:
    """A task, the name of one, or a function that makes one; it is given seed and steps if it has
    parameters of these names."""
    if isinstance(task, Task):
        return task
    make = _function(task) if isinstance(task, str) else task
    if not callable(make):
        raise Error("config", f"{task!r} is no task; give a tidegate.Task, its maker or a name")
    made = make(**_wanted(make, {"seed": seed, "steps": steps}))
    if not isinstance(made, Task):
        raise Error("config", f"{task!r} returned {type(made).__name__}, not a tidegate.Task")
    return made


def _wanted(function: Callable, offered: dict) -> dict:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C, or no function at all
        return {}
    return {name: value for name, value in offered.items() if name in parameters}


def _function(name: str) -> Callable[..., Task]:
    module, colon, attribute = TASKS.get(name, name).partition(":")
    if not (module and colon and attribute):
        raise Error(
            "config",
            f"unknown task {name!r}; known: {', '.join(TASKS)}, or module:function of your own",
        )
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise Error(
            "config",
            f"task {name!r}: {error}; write module:function, and look at PYTHONPATH",
        ) from error
    if not callable(found):
        raise Error("config", f"task {name!r}: module {module} has no function {attribute!r}")
    return found
