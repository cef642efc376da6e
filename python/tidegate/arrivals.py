# SPDX-License-Identifier: Apache-2.0
"""Wakes a thread that waits for something else when a collective has been performed.

Only one thing can be waited for at a time. Looking after the other now and then takes cores from
backward, or comes late; and what one rank notices late, all ranks wait for in the next round.
"""

import queue
import threading
from collections.abc import Callable

from .engine import STEP_OF_WAIT, Operation

JOIN = 1.0  # seconds


class Arrival:
    """In an inbox: a collective has been performed."""


class Arrivals:
    """tell is called from a thread of this object, once for every collective, in their order."""

    def __init__(self, name: str, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._watched: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def watch(self, operation: Operation) -> None:
        operation.watched = True
        self._watched.put(operation)

    def close(self) -> None:
        self._closing = True
        self._watched.put(None)
        self._thread.join(JOIN)

    def _work(self) -> None:
        while (operation := self._watched.get()) is not None:
            while not self._closing and not operation.settled(STEP_OF_WAIT):
                pass
            self._tell()
