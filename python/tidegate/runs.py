# SPDX-License-Identifier: Apache-2.0
"""Policies side by side: what the commands that compare them have in common."""

import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass

from . import _core
from .errors import Error
from .policies import Policy, parse

DEFAULT_POLICY = "auto"
BASELINES = {"dense fp32": "fixed:method=dense", "dense bf16": "fixed:method=bf16"}
DEFAULT_LINK = "100mbit,2ms"
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass
class Run:
    """One policy."""

    name: str
    policy: Policy
    baseline: bool


def choose_runs(arguments: Namespace, check: Callable[[Policy], object]) -> list[Run]:
    """Dense fp32 and bf16, unless they are not wanted, and every policy that was given.
    check(policy) raises what is wrong with one."""
    runs = []
    if not arguments.no_baselines:
        runs = [Run(name, parse(text), True) for name, text in BASELINES.items()]
    for text in arguments.policy or [DEFAULT_POLICY]:
        if text in [each.name for each in runs]:
            raise Error("config", f'--policy "{text}" is given twice')
        runs.append(Run(text, choose_policy(text), False))
    for each in runs:
        check(each.policy)
    return runs


def choose_policy(text: str) -> Policy:
    """NAME:KEY=VALUE,... or, short for fixed:method=METHOD,..., METHOD:KEY=VALUE,..."""
    policy = parse(text)
    if policy.name in {row["name"] for row in _core.methods()}:
        return Policy("fixed", {"method": policy.name, **policy.options})
    return policy


def choose_links(arguments: Namespace) -> "_core.LinkSchedule":
    """--link, or --link-schedule over the steps of the run."""
    if arguments.link_schedule is None:
        return _core.LinkSchedule(arguments.link or DEFAULT_LINK)
    if arguments.link is not None:
        raise Error("config", "--link and --link-schedule: give one of them")
    return _core.find_link_schedule(arguments.link_schedule, arguments.steps)


def check_range(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise Error("config", f"{option} {value:.12g}: must be between {low:g} and {high:.12g}")


def parse_seconds(option: str, text: str) -> float:
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        seconds = float(digits) * UNITS[text.strip()[len(digits) :]]
    except (ValueError, KeyError):
        seconds = math.nan
    if not 0 <= seconds < 1e6:
        raise Error("config", f'{option} "{text}": write for example 30ms or 0.2s')
    return seconds


def number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else format(value, form) + unit
