# SPDX-License-Identifier: Apache-2.0
"""What the user's thread lets the exchange thread do between two steps."""

import threading
from collections.abc import Callable
from typing import Any

PATIENCE = 0.2  # seconds; how soon Ctrl-C, or the end of the other thread, is noticed


class Errand:
    def __init__(self, action: Callable):
        self._action = action
        self._done = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._action()
        except BaseException as error:  # belongs to the thread that waits
            self._error = error
        self._done.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._done.set()

    @property
    def finished(self) -> bool:
        return self._done.is_set()

    def wait(self, worker: threading.Thread) -> Any:
        """What the action returned; raises what it raised."""
        while not self._done.wait(PATIENCE) and worker.is_alive():
            pass
        if not self._done.is_set():  # the worker has ended before it came to this
            self.run()
        if self._error is not None:
            raise self._error
        return self._result
