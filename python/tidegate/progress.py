# SPDX-License-Identifier: Apache-2.0
"""Where every rank is, kept in the job's store, so that a time-out can name who lags behind."""

import contextlib
import threading
import time
from datetime import timedelta

import torch.distributed as dist

EVERY = 1.0  # seconds between two notes of a rank that is getting on
STORE_PATIENCE = 2.0  # seconds; a store that does not answer must not hold up an error report


class Progress:
    def __init__(self, group: dist.ProcessGroup, label: str, rank: int, ranks: int):
        self.rank = rank
        self.ranks = ranks
        self._store = dist.PrefixStore(f"tidegate/{label}", group.get_group_store().clone())
        self._store.set_timeout(timedelta(seconds=STORE_PATIENCE))
        self._noted_at = 0.0
        self._noted = None
        self._silent = False  # the store did not answer once, and will not be asked again
        self.note((0, 0, 0))

    def note(self, position: tuple[int, int, int], state: str = "") -> None:
        """Publishes (step, bucket, round). Called when a step ends, when a wait becomes long, and
        with a state when this rank gives up."""
        self._noted_at = time.monotonic()
        self._noted = position
        self._ask(
            lambda: self._store.set(str(self.rank), " ".join(map(str, position)) + f" {state}")
        )

    def note_sometimes(self, position: tuple[int, int, int]) -> None:
        if position != self._noted and time.monotonic() - self._noted_at > EVERY:
            self.note(position)

    def _ask(self, question):
        """The store's answer, or None if there is none in time. In a thread of its own: a store
        whose process has stopped blocks its clients, whatever their time-out."""
        answers = []

        def ask():
            with contextlib.suppress(RuntimeError):
                answers.append(question())

        if not self._silent:
            thread = threading.Thread(target=ask, daemon=True)
            thread.start()
            thread.join(STORE_PATIENCE)
            self._silent = thread.is_alive()
        return answers[0] if answers else None

    def laggards(self, position: tuple[int, int, int]) -> str:
        """One sentence about the ranks that are behind `position`."""
        notes = self._ask(lambda: self._store.multi_get([str(rank) for rank in range(self.ranks)]))
        if notes is None:
            return "The store, usually kept by rank 0, does not answer: who lags is unknown."
        behind, gave_up = [], []
        for rank, note in enumerate(notes):
            step, bucket, round_, *state = note.decode().split(" ", 3)
            where = f"rank {rank} (step {step}, bucket {bucket}, round {round_})"
            if rank == self.rank:
                continue
            if state and state[0]:
                gave_up.append(f"{where}: {state[0]}")
            elif (int(step), int(bucket), int(round_)) < position:
                behind.append(where)
        text = ""
        if behind:
            text = "Behind, as last seen: " + ", ".join(behind) + "."
        elif not gave_up:
            text = "No rank is known to be behind: all wait for each other, or for the network."
        if gave_up:
            text += " Gave up: " + "; ".join(gave_up) + "."
        return text.strip()
