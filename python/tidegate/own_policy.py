# SPDX-License-Identifier: Apache-2.0
"""Policies that users write: a function, or a class that remembers something.

    def backlog_below_ten(question):
        if question.backlog is None:
            return "dense", "nothing is known yet"
        return "topk", 0.01 if question.backlog < 10 else 0.05

    tidegate.attach(model, optimizer, policy=backlog_below_ten)

Every rank must decide the same, so a policy uses only what it is asked (numbers that all ranks have
agreed on) and what it remembers of it: no clocks, no random numbers, nothing of its own rank.
docs/POLICIES.md tells what a question holds and what may be answered."""

import copy
import hashlib
import importlib
import inspect
import numbers
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _core
from .errors import Error

NEEDS = ("reacts", "by_host", "speeds", "magnitudes", "sketches")
HELP = 'answer "dense", ("topk", 0.01), ("topk", 0.01, "why") or tidegate.Choice(...)'


@dataclass(frozen=True)
class Choice:
    """How one bucket is averaged in one step."""

    method: str  # one of `tidegate methods`
    ratio: float | None = None  # for methods whose level is a ratio
    rank: int | None = None  # for methods whose level is a rank
    route: str = "auto"
    bits: int = 0  # 0 = the method's own
    reason: str = ""  # one sentence
    select: str = "about"  # sparsifiers: "about" k elements, or "exactly"
    weaker: float = 0.0  # sparsifiers: the gain at this ratio is measured too
    momentum: float = 0.0  # dgc: the optimiser's, taken over by the method
    clip: float = 0.0  # dgc: largest norm of a gradient over all ranks
    at_once: bool = False  # with a method that sends everything: what waits goes out at once


@dataclass(frozen=True)
class Decision:
    """The same, where layers of the bucket go different ways. Layers are numbers in
    question.layers, each at most once and ascending."""

    choice: "Choice | tuple | str"
    apart: tuple = ()  # of (layers, choice): these layers go another way than the others
    dropped: tuple[int, ...] = ()  # layers whose residual is thrown away before this step
    reason: str = ""


Answer = Decision | Choice | tuple | str
Compare = Callable[[int, int, str], None]  # step, bucket, answer in words


class OwnPolicy:
    """A policy that remembers something. Only decide() must be written; any class that has it will
    do."""

    # What it wants to be told beyond what is free: any of NEEDS (tidegate/policies/policy.h).
    needs: tuple[str, ...] = ()
    # Steps over which gradients are summed up for Question.window, or 0 for an epoch.
    window: int | None = None
    # Ranks compare their answers before they act on them: a small message per bucket. False saves
    # it; ranks that differ then end by a time-out, or by gloo's abort.
    compared: bool = True

    def begin_step(self, now: _core.Question) -> None:
        """Once per step, before any bucket: a question that is about none."""

    def decide(self, question: _core.Question) -> Answer:
        """For every bucket of a step."""
        raise NotImplementedError

    def batches_per_step(self) -> int:
        """How many batches are accumulated for the step after this one."""
        return 1

    def rate_scale(self) -> float:
        """What learning rates are multiplied with for that step, compared with the user's."""
        return 1.0

    def remember(self) -> dict[str, list[float]]:
        """What a checkpoint must hold: a job that is resumed decides as one that went on."""
        return {}

    def recall(self, notes: dict[str, list[float]]) -> None:
        """Takes back what remember() gave."""


class Adapter:
    """Any form of own policy, as the library calls it."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.compare: Compare | None = None  # with the other ranks
        self._decide = policy.decide if hasattr(policy, "decide") else policy

    @property
    def wants_comparison(self) -> bool:
        return bool(getattr(self.policy, "compared", True))

    def needs(self) -> tuple:
        wanted = tuple(getattr(self.policy, "needs", ()))
        unknown = [name for name in wanted if name not in NEEDS]
        if unknown:
            raise Error("config", f"needs {unknown}: known are {', '.join(NEEDS)}")
        return (*(name in wanted for name in NEEDS), getattr(self.policy, "window", None))

    def begin_step(self, now: _core.Question) -> None:
        if hasattr(self.policy, "begin_step"):
            self.policy.begin_step(now)

    def decide(self, question: _core.Question) -> tuple:
        """(choice, reason, [(layers, choice)], [layers that are dropped])"""
        answer = self._read_all(self._decide(question))
        if self.compare is not None:
            self.compare(question.step, question.bucket, in_words(answer))
        return answer

    def _read_all(self, answer: Answer) -> tuple:
        if not isinstance(answer, Decision):
            return (*self._read(answer), [], [])
        choice, reason = self._read(answer.choice)
        apart = [(list(map(int, layers)), self._read(way)[0]) for layers, way in answer.apart]
        return choice, answer.reason or reason, apart, list(map(int, answer.dropped))

    def _read(self, answer: Any) -> tuple:
        reason = ""
        if isinstance(answer, tuple) and len(answer) > 1 and isinstance(answer[-1], str):
            *answer, reason = answer
            answer = answer[0] if len(answer) == 1 else tuple(answer)
        if isinstance(answer, Choice):
            return self._written(answer), reason or answer.reason
        method, level = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
        if not isinstance(method, str) or not (level is None or isinstance(level, numbers.Real)):
            raise Error("config", f"answered {answer!r}, which is no choice; {HELP}")
        return (
            method,
            None if level is None else float(level),
            *self._written(Choice(""))[2:],
        ), reason

    @staticmethod
    def _written(choice: Choice) -> tuple:
        """As the library reads it."""
        if choice.ratio is not None and choice.rank is not None:
            raise Error("config", f"answered {choice}: no method has both a ratio and a rank")
        level = choice.rank if choice.ratio is None else choice.ratio
        return (
            choice.method,
            None if level is None else float(level),
            choice.route,
            int(choice.bits),
            choice.select,
            float(choice.weaker),
            float(choice.momentum),
            float(choice.clip),
            bool(choice.at_once),
        )

    def fingerprint(self) -> str:
        """Tells ranks that run other versions of the user's file."""
        code = self.policy if inspect.isfunction(self.policy) else type(self.policy)
        try:
            source = inspect.getsource(code)
        except (OSError, TypeError):  # typed in, or written in C
            return ""
        return f" (source {hashlib.sha256(source.encode()).hexdigest()[:12]})"

    def batches_per_step(self) -> int:
        wanted = getattr(self.policy, "batches_per_step", None)
        return int(wanted()) if wanted else 1

    def rate_scale(self) -> float:
        wanted = getattr(self.policy, "rate_scale", None)
        return float(wanted()) if wanted else 1.0

    def remember(self) -> dict[str, list[float]]:
        given = getattr(self.policy, "remember", None)
        return (
            {name: [float(v) for v in values] for name, values in given().items()} if given else {}
        )

    def recall(self, notes: dict[str, list[float]]) -> None:
        if hasattr(self.policy, "recall"):
            self.policy.recall(notes)


def in_words(answer: tuple) -> str:
    """What is to be done: all of an answer but its reason."""
    choice, _, apart, dropped = answer
    parts = [_choice_in_words(choice)]
    parts += [f"layers {layers}: {_choice_in_words(way)}" for layers, way in apart]
    return "; ".join([*parts, *([f"layers {dropped} dropped"] if dropped else [])])


def _choice_in_words(written: tuple) -> str:
    method, level, *others = written
    names = ("route", "bits", "select", "weaker", "momentum", "clip", "at_once")
    usual = Adapter._written(Choice(""))[2:]
    given = [
        f"{name}={value}"
        for name, value, standard in zip(names, others, usual, strict=True)
        if value != standard
    ]
    return " ".join([method, *([f"{level!r}"] if level is not None else []), *given])


def is_own(policy: object) -> bool:
    """A function, or a class or object that decides."""
    return callable(policy) or hasattr(policy, "decide")


def name_of(policy: Any) -> str:
    """module:function, as the command line would have it."""
    named = policy if hasattr(policy, "__qualname__") else type(policy)
    return f"{named.__module__}:{named.__qualname__}"


def adapters(policy: Any, count: int) -> list[Adapter]:
    """One for each session: what a policy remembers is its session's own."""
    if inspect.isclass(policy):
        return [Adapter(policy()) for _ in range(count)]
    if not hasattr(policy, "decide"):  # a function remembers nothing
        return [Adapter(policy)] * count
    return [Adapter(policy), *(Adapter(copy.deepcopy(policy)) for _ in range(count - 1))]


def find(name: str) -> Any:
    """The function or class of "module:function"; modules beside the script are found too."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise Error(
            "config", f'policy "{name}": {error}; write module:function, and look at PYTHONPATH'
        ) from error
    if found is None or not is_own(found):
        raise Error("config", f'policy "{name}": module {module} has no function {attribute!r}')
    return found


def describe_error(error: BaseException) -> tuple[str, str]:
    """(kind, text) of what a policy raised, with the place in the user's file."""
    if isinstance(error, Error):
        return error.kind, str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return "config", f"raised {type(error).__name__}: {error}{where}"
