# SPDX-License-Identifier: Apache-2.0
"""What is said of a claim: whether it holds, by which figures and rule, and if not, why."""

from dataclasses import dataclass

from .report import MISSING


@dataclass
class Verdict:
    claim: str
    holds: bool | None = None  # None: not measured
    figures: str = ""
    rule: str = ""
    reason: str = ""  # why it does not hold: sentences, for that case only
    remark: str = ""  # for any case
    way: str = ""  # one of several in which the claim was looked at

    @property
    def outcome(self) -> str:
        if self.holds is None:
            return MISSING
        return "reproduces" if self.holds else "**does not reproduce**"

    def __str__(self) -> str:
        if self.holds is None:
            return self.outcome
        sentences = [f"{self.outcome}: {self.figures} (rule: {self.rule})."]
        if not self.holds:
            sentences.append(f"Why: {self.reason or 'not known.'}")
        return " ".join(filter(None, [*sentences, self.remark]))


def listed(verdicts: list[Verdict]) -> str:
    return "".join(f"* {', '.join(filter(None, (v.claim, v.way)))}: {v}\n" for v in verdicts)


def outcomes(verdicts: list[Verdict]) -> dict[str, str]:
    """By claim, in a few words: of ways that come out alike, once."""
    ways = {}
    for each in verdicts:
        ways.setdefault(each.claim, {})[each.way] = each.outcome
    return {claim: in_short(by_way) for claim, by_way in ways.items()}


def in_short(by_way: dict[str, str]) -> str:
    if len(set(by_way.values())) == 1:
        return next(iter(by_way.values()))
    return "; ".join(f"{way}: {outcome}" for way, outcome in by_way.items())
