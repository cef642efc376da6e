# SPDX-License-Identifier: Apache-2.0
"""Two policies of your own, on a virtual cluster; `tidegate.attach(policy=...)` takes them too, and

    tidegate simulate --policy own_policy:careful

from this folder on the command line."""

import tidegate
from tidegate.policies import OwnPolicy


def careful(question):
    """The smallest ratio that keeps 60 % of the energy. A pure function: it remembers nothing."""
    if question.gain(0.01) is None:
        # Magnitudes are seen where something is selected, so a quarter goes out at first.
        return "topk", 0.25, "magnitudes are not known yet"
    for ratio in (0.01, 0.02, 0.05, 0.1, 0.25):
        gain = question.gain(ratio)
        if gain >= 0.6:
            return "topk", ratio, f"{ratio:.0%} of the elements hold {gain:.0%} of the energy"
    return "dense", "a quarter of the elements holds less than 60 % of the energy"


class BacklogBelow(OwnPolicy):
    """Top-k with a ratio that keeps what waits below a limit."""

    needs = ("reacts",)  # it acts on what it sees, so records must not be rare

    def __init__(self, limit: float = 10.0):
        self.limit = limit
        self.ratio = 0.01

    def begin_step(self, now):
        if not now.fresh or now.backlog is None:
            return
        if now.backlog > self.limit:
            self.ratio = min(1.0, 2 * self.ratio)
        elif now.backlog < self.limit / 2:
            self.ratio = max(0.001, 0.9 * self.ratio)

    def decide(self, question):
        if not question.known:
            return "dense", "nothing is known yet"
        return tidegate.Choice(
            "topk", ratio=self.ratio, reason=f"backlog {question.backlog:.2g} of {self.limit:g}"
        )

    def remember(self):
        return {"ratio": [self.ratio]}

    def recall(self, notes):
        self.ratio = notes["ratio"][0]


def main():
    for policy in (careful, BacklogBelow(limit=3)):
        cluster = tidegate.VirtualCluster(
            "fashion-mnist", ranks=2, link="100mbit,2ms", policy=policy
        )
        outcome = cluster.run(steps=10)
        name = getattr(policy, "__name__", type(policy).__name__)
        print(f"{name}: {outcome.ratio:.1%} of dense, loss {outcome.loss:.3f}")
        for choice, count in outcome.choices.items():
            print(f"  {count:4} times {choice}")


if __name__ == "__main__":
    main()
