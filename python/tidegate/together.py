# SPDX-License-Identifier: Apache-2.0
"""What every rank must do, or none."""

from collections.abc import Callable
from typing import Any, Protocol

from .errors import Error


class Gathers(Protocol):
    def _gather(self, value: Any, what: str) -> list: ...


def together(handle: Gathers, what: str, action: Callable, undo: Callable = lambda: None) -> list:
    """Does something on every rank; what = what the user has called. Returns all ranks' results; if
    one rank fails, all undo it and raise. Ranks that cannot reach each other undo nothing: others
    may rely on what they did."""
    result, mistake = None, None
    try:
        result = action()
    except Error as error:
        mistake = (error.kind, str(error))
    except Exception as error:  # whatever it is, nobody may be left waiting
        mistake = ("checkpoint", f"{type(error).__name__}: {error}")
    everyone = handle._gather((mistake, result), what)
    mistakes = [(rank, said[0]) for rank, said in enumerate(everyone) if said[0]]
    if mistakes:
        rank, (kind, text) = mistakes[0]
        others = ", ".join(str(rank) for rank, _ in mistakes[1:])
        also = f" (rank {others} failed, too)" if others else ""
        undo()
        raise Error(kind, f"rank {rank}: {text}{also}")
    return [said[1] for said in everyone]
