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

    def __str__(self) -> str:
        if self.holds is None:
            return MISSING
        outcome = "reproduces" if self.holds else "**does not reproduce**"
        sentences = [f"{outcome}: {self.figures} (rule: {self.rule})."]
        if not self.holds:
            sentences.append(f"Why: {self.reason or 'not known.'}")
        return " ".join(filter(None, [*sentences, self.remark]))


def listed(verdicts: list[Verdict]) -> str:
    return "".join(f"* {verdict.claim}: {verdict}\n" for verdict in verdicts)
