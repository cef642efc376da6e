# SPDX-License-Identifier: Apache-2.0
"""GraVAC on real gradients. Without a link records come after every step, so that runs repeat."""

import json
import re

import pytest
from test_virtual_cluster import make_task

import tidegate
from tidegate.policies import Gravac

pytestmark = pytest.mark.usefixtures("one_thread")


def decisions(path) -> list[dict]:
    events = [json.loads(line) for line in path.read_text().splitlines()]
    return [event for event in events if event.get("bucket") == 0 and "choice" in event]


def test_it_climbs_and_falls_back_on_fashion_mnist_and_says_why(tmp_path):
    policy = Gravac(threshold=0.5, window=8, saturation=0)
    cluster = tidegate.VirtualCluster(
        "fashion-mnist", 2, policy=policy, trace=tmp_path / "{rank}.jsonl", check=True
    )
    for _ in range(36):
        cluster.step()
    made = decisions(tmp_path / "0.jsonl")
    ratios = [decision["choice"].get("ratio", 1) for decision in made]
    assert ratios[0] == 0.1
    assert 0.05 in ratios and 0.025 in ratios  # it climbed
    strongest = ratios.index(min(ratios))
    assert 0.1 in ratios[strongest:]  # and fell back to the minimum
    climbed = made[ratios.index(0.05)]
    assert climbed["choice"]["weaker"] == 0.1
    keeps = r"20x keeps 0\.[5-9]\d* of the energy, not less than 0\.5; at step 8 climbed from 10x"
    assert re.match(keeps, climbed["reason"])
    fell = made[strongest + 1 + ratios[strongest + 1 :].index(0.1)]
    assert re.match(
        r"\d+x keeps 0\.[0-4]\d* of the energy, less than 0\.5, but the", fell["reason"]
    )
    assert fell["statistics"]["step"] <= fell["step"] - 2
    others = decisions(tmp_path / "1.jsonl")
    assert [(d["step"], d["choice"], d["reason"]) for d in others] == [
        (d["step"], d["choice"], d["reason"]) for d in made
    ]


def test_it_sends_everything_where_too_little_is_kept(tmp_path):
    policy = Gravac(threshold=0.99, window=5)
    outcome = tidegate.VirtualCluster(
        make_task(), 2, policy=policy, trace=tmp_path / "{rank}.jsonl"
    ).run(10)
    made = decisions(tmp_path / "0.jsonl")
    assert made[1]["step"] == 2  # as soon as it knows
    assert made[1]["choice"]["method"] == "dense"
    assert made[1]["reason"].endswith("less than 0.99, so everything is sent")
    assert outcome.ratio > 0.3


def test_it_goes_on_from_a_snapshot_as_if_nothing_had_happened():
    policy = Gravac(threshold=0.001, window=4, climb="geometric", saturation=0)
    cluster = tidegate.VirtualCluster(make_task(), 2, policy=policy)
    cluster.run(18)
    snapshot = cluster.snapshot()
    went_on = cluster.run(15)
    other = tidegate.VirtualCluster(make_task(), 2, policy=policy)
    other.restore(snapshot)
    resumed = other.run(15)
    assert resumed.loss == went_on.loss
    assert resumed.choices == went_on.choices
    # A search that had begun anew would not have come so far in 15 steps.
    assert "topk 0.0015625 in 16 bits by allgather" in resumed.choices


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "powersgd"}, "cannot use method"),
        ({"method": "artopk-star"}, "cannot use method"),
        ({"max_factor": 5}, "max_factor"),
        ({"climb": "slowly"}, "exponential, geometric"),
    ],
)
def test_what_it_cannot_do_is_an_error(options, says):
    with pytest.raises(tidegate.Error, match=says) as caught:
        tidegate.VirtualCluster(make_task(), 2, policy=Gravac(**options))
    assert caught.value.kind == "config"


def test_its_options_are_those_of_the_table():
    rows = {row["name"]: row for row in tidegate._core.policies()}
    options = rows["gravac"]["options"]
    standard = {option["name"]: option["standard"] for option in options if option["standard"]}
    given = Gravac().options
    assert given.keys() == standard.keys()
    for name, value in given.items():
        assert value == standard[name]
