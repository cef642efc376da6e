# SPDX-License-Identifier: Apache-2.0
"""What a rank does while a collective keeps it waiting: it says where it is, looks whether a rank
that it waits for has failed or left, and reports ranks that are slow, once per episode."""

import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable

from .errors import Error
from .progress import Position, Progress

LONG_WAIT = 0.4  # seconds; a rank that waits longer says where it is, and looks around
LOOK_EVERY = 0.2  # seconds, and a thousandth per rank, for the sake of whoever keeps the store
SLOW = 2.0  # seconds; a shorter wait is not worth a word
ASK_EVERY = 30.0  # seconds between two looks at who is slow in one episode
QUIET_STEPS = 10  # without a long wait, after which an episode is over
RECENT_STEPS = 20  # whose median says how long a step usually takes


class Lookout:
    def __init__(self, progress: Progress, note_slow: Callable[[str], None]):
        self._progress = progress
        self._note_slow = note_slow
        self._looked = 0.0
        self._asked = 0.0
        self._step_began = time.monotonic()
        self._recent: deque[float] = deque(maxlen=RECENT_STEPS)
        self._steps = 0  # that have ended
        self._aside = ""  # what this rank waits in between two steps
        self._asides = 0  # that have ended
        self._aside_told = False
        self._slow: list[int] | None = None  # ranks that the present episode is about
        self._quiet = 0  # steps since its last long wait

    def end_step(self, steps: int) -> None:
        now = time.monotonic()
        self._recent.append(now - self._step_began)
        self._step_began = now
        self._steps = steps
        self._quiet += 1
        if self._quiet > QUIET_STEPS:
            self._slow = None
        self._progress.note_sometimes((steps, 0, 0))

    def show(self, notices: list[str]) -> None:
        """Sentences that all ranks have: one says them."""
        for notice in notices if self._progress.rank == 0 else ():
            warnings.warn(f"tidegate: {notice}", stacklevel=2)

    def begin_aside(self, what: str) -> None:
        """This rank has something to tell all others, between two steps."""
        self._aside, self._aside_told = what, False
        self._progress.asides = None

    def wait_aside(self, began: float) -> None:
        """Called again and again while they have not all told theirs."""
        now = time.monotonic()
        look_every = LOOK_EVERY + 1e-3 * self._progress.ranks
        if now - began < LONG_WAIT or now - self._looked < look_every:
            return
        self._looked = now
        if not self._aside_told:
            self._aside_told = True
            self._progress.tell_aside(self._asides, self._steps, self._aside)
        news = self._progress.hear((self._steps, 0, 0))
        if news is not None:
            raise Error("peer", news.text)

    def end_aside(self) -> None:
        """All ranks have."""
        self._asides += 1
        self._progress.asides = self._asides

    def wait(self, position: Position, began: float) -> None:
        """Called again and again while what began at `began` has not arrived. Raises when somebody
        is known to be lost."""
        now = time.monotonic()
        look_every = LOOK_EVERY + 1e-3 * self._progress.ranks
        if now - began < LONG_WAIT or now - self._looked < look_every:
            return
        self._looked = now
        news = self._progress.hear(position)
        if news is not None:
            raise Error("peer", news.text)
        if now - began > max(SLOW, statistics.median(self._recent or [0.0])):
            self._quiet = 0
            if self._slow is None or now - self._asked > ASK_EVERY:
                self._asked = now
                self._report(position, now - began)

    def _report(self, position: Position, waited: float) -> None:
        found = self._progress.behind(position)
        slow = found[0] if found else []
        if slow == self._slow:
            return
        self._slow = slow
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - waited))
        who = found[1] if found else self._progress.laggards(position)
        text = f"waiting since {since} in step {position[0]}, bucket {position[1]}. {who}"
        self._note_slow(text)
        # One rank's warning is enough: that of the first which is not slow itself.
        if self._progress.rank == min(set(range(self._progress.ranks)) - set(slow)):
            warnings.warn(
                f"tidegate: {text} This is no error as long as it ends before the time-out.",
                stacklevel=2,
            )
