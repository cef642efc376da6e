# SPDX-License-Identifier: Apache-2.0
"""Where every rank is, and what became of it, kept in the job's store: ranks that wait can name who
lags behind, and hear of a rank that failed or left before their own time is up."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

EVERY = 1.0  # seconds between two notes of a rank that is getting on
STORE_PATIENCE = 0.6  # seconds; errors are due a second after a deadline, whatever the store does
LONGEST_NEWS = 1500  # characters of an error that the others are told

Position = tuple[int, int, int]  # step, bucket, round


@dataclass
class News:
    """Of another rank that is lost to this one."""

    text: str
    is_cause: bool  # not just another rank that was left waiting


class Progress:
    def __init__(self, group: dist.ProcessGroup, label: str, rank: int, ranks: int) -> None:
        self.rank = rank
        self.ranks = ranks
        store: Any = group.get_group_store()  # torch's stubs do not know clone()
        self._store = dist.PrefixStore(f"tidegate/{label}", store.clone())
        self._store.set_timeout(timedelta(seconds=STORE_PATIENCE))
        self._noted_at = 0.0
        self._noted: Position | None = None
        self._asking: threading.Thread | None = None
        self._heard: list[News | None] = []
        self._asked_at = 0.0
        self.asides: int | None = 0  # in which all ranks have met; None while this one waits in one
        self._gone = False  # whoever kept the store has ended
        self.note((0, 0, 0))

    def note(self, position: Position, state: str = "") -> None:
        """Publishes where this rank is. Called when a step ends, when a wait becomes long, and with
        a state when this rank gives up."""
        self._ask(lambda: self._write(position, state))

    def note_sometimes(self, position: Position) -> None:
        if position != self._noted and time.monotonic() - self._noted_at > EVERY:
            self.note(position)

    def _write(self, position: Position, state: str = "") -> None:
        self._noted_at = time.monotonic()
        self._noted = position
        self._store.set(str(self.rank), " ".join(map(str, position)) + f" {state}")

    def tell_failure(self, position: Position, kind: str, where: str, text: str) -> None:
        """For those who wait for this rank. Of several failures the first is kept: the others
        follow from it."""

        def tell() -> None:
            self._write(position, f"{kind}{where}")
            self._store.compare_set("failed", "", f"{self.rank} {kind} {text[:LONGEST_NEWS]}")

        self._ask(tell)

    def tell_leave(self, step: int) -> None:
        """This rank has taken `step` steps and will take no more."""

        def tell() -> None:
            self._write((step, 0, 0), "has left")
            self._store.compare_set("left", "", f"{self.rank} {step}")

        self._ask(tell)

    def tell_aside(self, number: int, step: int, what: str) -> None:
        """This rank waits before `step` for all others to do the same, the number-th such thing."""
        self._ask(lambda: self._store.set("aside", f"{self.rank} {number} {step} {what}"))

    def hear(self, position: Position) -> News | None:
        """Why nobody should wait at `position` any longer, if the store has said so by now. Notes
        `position` by the way. Does not wait for the store: the next call has the answer."""
        if self.silent:
            return None
        heard, self._heard = self._heard, []
        self._begin(lambda: self._look(position), self._heard)
        return heard[0] if heard else None

    def find_cause(self, position: Position) -> News | None:
        """Likewise, but waits for the answer, and only for what others do not merely suffer."""
        news = self._ask(lambda: self._look(position))
        return news if news and news.is_cause else None

    def _look(self, position: Position) -> News | None:
        if position != self._noted:
            self._write(position)
        failure = None
        if self._store.check(["failed"]):
            failed, kind, text = self._store.get("failed").decode().split(" ", 2)
            if int(failed) != self.rank:
                failure = News(f"rank {failed} has failed: {text}", kind not in ("peer", "timeout"))
        if failure is not None and failure.is_cause:
            return failure
        # Who was left waiting may have been left by this one.
        if self._store.check(["left"]):
            rank, step = map(int, self._store.get("left").decode().split())
            if rank != self.rank and (step, 0, 0) < position:
                return News(
                    f"rank {rank} has left after {step} steps: its script has ended, raised an "
                    "error or called detach(). If it only had fewer batches, use DDP's join()",
                    True,
                )
        return self._look_aside(position) or failure

    def _look_aside(self, position: Position) -> News | None:
        """A rank that waits between two steps for all others, when this one has gone on: neither
        would ever end. (One that is still in the step before will come.)"""
        in_step = position[2] > 0 or position[1] > 0
        if self.asides is None or not in_step or not self._store.check(["aside"]):
            return None
        rank, number, step, what = self._store.get("aside").decode().split(" ", 3)
        if int(rank) == self.rank or int(number) != self.asides or int(step) > position[0]:
            return None
        return News(
            f"rank {rank} waits in {what} before step {step} for all ranks, and rank {self.rank} "
            f"has gone on to step {position[0]} without it. Every rank must call {what}, also "
            "where one alone has something to write",
            True,
        )

    @property
    def silent(self) -> bool:
        """The store has ended, or owes an answer: nothing can be asked or told now."""
        return self._gone or (self._asking is not None and self._asking.is_alive())

    def _begin(self, question: Callable[[], Any], answers: list) -> threading.Thread:
        """Asks the store in a thread: one whose process has stopped blocks its clients, whatever
        their time-out."""

        def ask() -> None:
            try:
                answers.append(question())
            except dist.DistNetworkError:
                self._gone = True  # torch would complain at length every time
            except RuntimeError:
                pass

        self._asked_at = time.monotonic()
        self._asking = threading.Thread(target=ask, name="tidegate store", daemon=True)
        self._asking.start()
        return self._asking

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The store's answer, or None if there is none in time. A question that was asked before is
        waited for as long, counted from when it was asked."""
        now = time.monotonic()
        if self._asking is not None:
            self._asking.join(max(0.0, self._asked_at + STORE_PATIENCE - now))
        if self.silent:
            return None
        answers: list = []
        asking = self._begin(question, answers)
        asking.join(max(0.0, now + STORE_PATIENCE - time.monotonic()))
        return answers[0] if answers else None

    def behind(self, position: Position) -> tuple[list[int], str] | None:
        """The ranks that are behind `position`, and one sentence about them; None if the store does
        not answer."""
        notes = self._ask(lambda: self._store.multi_get([str(rank) for rank in range(self.ranks)]))
        if notes is None:
            return None
        ranks, behind, gave_up = [], [], []
        for rank, note in enumerate(notes):
            step, bucket, round_, *state = note.decode().split(" ", 3)
            where = f"rank {rank} (step {step}, bucket {bucket}, round {round_})"
            if rank == self.rank:
                continue
            if state and state[0]:
                gave_up.append(f"{where}: {state[0]}")
            elif (int(step), int(bucket), int(round_)) < position:
                ranks.append(rank)
                behind.append(where)
        text = ""
        if behind:
            text = "Behind, as last seen: " + ", ".join(behind) + "."
        elif not gave_up:
            text = "No rank is known to be behind: all wait for each other, or for the network."
        if gave_up:
            text += " Gave up: " + "; ".join(gave_up) + "."
        return ranks, text.strip()

    def laggards(self, position: Position) -> str:
        """One sentence about the ranks that are behind `position`."""
        found = self.behind(position)
        if found is None:
            return (
                "The job's store does not answer, so who lags is unknown: whoever keeps it, "
                "usually rank 0, may be the one that is lost."
            )
        return found[1]
