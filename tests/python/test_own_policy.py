# SPDX-License-Identifier: Apache-2.0
"""Policies that users write in Python: in the virtual cluster, in real processes, on the command
line, and when they do something wrong."""

import gc
import importlib.util
import json
import re
import time
import weakref
from pathlib import Path

import pytest
from ranks import results, run_ranks
from small_task import make_task, record
from training import batches, mlp, sgd, train, wrap

import tidegate
from tidegate import _core, cli, own_policy
from tidegate.policies import OwnPolicy

pytestmark = pytest.mark.usefixtures("one_thread")

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_policy.py"


def run(policy, steps=12, **options):
    cluster = tidegate.VirtualCluster(
        make_task(),
        2,
        "1gbit,0.1ms",
        policy=policy,
        bucket_mb=0.02,
        compute_seconds=0.02,
        check=True,
        **options,
    )
    return cluster.run(steps)


@pytest.mark.parametrize(
    ("answer", "choice"),
    [
        ("dense", "dense by engine"),
        (("dense", "why"), "dense by engine"),
        (("topk", 0.25), "topk 0.25 in 16 bits by allgather"),
        (("topk", 0.25, "why"), "topk 0.25 in 16 bits by allgather"),
        (("powersgd", 2), "powersgd rank 2 by engine"),
        (tidegate.Choice("topk", ratio=0.5, bits=8), "topk 0.5 in 8 bits by allgather"),
        ((tidegate.Choice("int8", route="owner"), "why"), "int8 by owner"),
    ],
)
def test_an_answer_may_be_written_in_several_ways(answer, choice):
    assert set(run(lambda question: answer, 2).choices) == {choice}


def test_a_question_tells_what_all_ranks_agreed_on():
    seen = []

    def look(question):
        if question.known and question.fresh and question.bucket == 0:
            seen.append(
                {
                    name: getattr(question, name)
                    for name in dir(question)
                    if not name.startswith("_") and name not in ("gain", "price", "bytes")
                }
            )
            seen[-1]["gains"] = [question.gain(ratio) for ratio in (0.01, 0.1, 1.0)]
            seen[-1]["prices"] = [question.price("dense"), question.price("topk", 0.01)]
            seen[-1]["sizes"] = [question.bytes("dense"), question.bytes("topk", 0.01)]
        return "topk", 0.25

    run(look, 20)
    assert len(seen) > 4
    assert seen[0] == seen[1], "both ranks are asked the same"
    last = seen[-1]
    for name in ("gradient_energy", "residual_energy", "step_seconds", "bytes_sent"):
        assert len(last[name]) == 2
        assert min(last[name]) > 0, name
    assert last["backlog"] == sum(last["residual_energy"]) / sum(last["gradient_energy"])
    assert 0 < last["gains"][0] < last["gains"][1] < last["gains"][2] <= 1.0001
    assert 0 < last["prices"][1] < last["prices"][0]
    assert last["sizes"][1] < last["sizes"][0] == 4 * last["elements"]  # 2 ranks: half, twice
    assert last["elements"] == sum(elements for _, elements, _ in last["layers"])
    assert last["records_step"] <= last["step"] - 2
    assert last["compute"] > 0
    assert last["link"][0] > 0


def test_a_question_cannot_be_kept():
    kept = []

    def keep(question):
        kept.append(question)
        return "dense"

    run(keep, 1)
    with pytest.raises(tidegate.Error, match="only while it is being answered"):
        _ = kept[0].step


class Counting(OwnPolicy):
    """One more step dense for every object that is shared by mistake."""

    needs = ("reacts",)
    window = 3

    def __init__(self):
        self.steps = 0
        self.windows = 0

    def begin_step(self, now):
        self.steps += 1
        self.windows = 0 if now.window is None else now.window[0] + 1
        if now.window is not None:
            assert now.window[1] == 3
            assert all(norm > 0 for norm in now.window[2].values())

    def decide(self, question):
        assert self.steps == question.step + 1
        return ("dense", "at first") if self.steps < 4 else ("topk", 0.1, f"{self.windows} windows")

    def remember(self):
        return {"steps": [self.steps]}

    def recall(self, notes):
        self.steps = int(notes["steps"][0])


@pytest.mark.parametrize("policy", [Counting, Counting()], ids=["class", "object"])
def test_every_session_has_a_policy_of_its_own(policy):
    assert len(run(policy, 8).choices) == 2


def test_what_a_policy_remembers_survives_a_snapshot():
    def cluster():
        return tidegate.VirtualCluster(make_task(), 2, policy=Counting(), compute_seconds=0.01)

    first = cluster()
    first.run(6)
    snapshot = first.snapshot()
    other = cluster()
    other.restore(snapshot)
    assert other.run(3).loss == first.run(3).loss


def test_a_cluster_and_a_policy_that_refers_to_it_are_collected():
    class Holder(OwnPolicy):
        def decide(self, question):
            return "dense"

    policy = Holder()
    policy.cluster = tidegate.VirtualCluster(make_task(), 1, policy=policy)
    gone = weakref.ref(policy)
    del policy
    gc.collect()
    assert gone() is None


# --- what goes wrong ---


def raises(question):
    if question.step == 2 and question.bucket == 1:
        return 1 / 0
    return "dense"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "answered None, which is no choice"),
        (("topk", "often"), 'method "topk" needs a ratio'),
        ((1, 2), "which is no choice"),
        ("topkk", 'unknown method "topkk"'),
        ("topk", "needs a ratio, for example 0.01"),
        (("topk", 7), "ratio 7"),
        (("topk", float("nan")), "ratio nan"),
        (("dense", 0.5), "has no ratio or rank"),
        (tidegate.Choice("topk", 0.1, route="ring"), 'cannot take the route "ring"'),
        (tidegate.Choice("topk", 0.1, bits=5), "5 bits"),
        (tidegate.Choice("topk", 0.1, rank=2), "both a ratio and a rank"),
        (tidegate.Choice("topk", 0.1, select="all"), 'select "all"'),
        (tidegate.Choice("topk", 0.1, weaker=2.0), "weaker 2"),
        (tidegate.Choice("dgc", 0.1, momentum=1.5), "momentum 1.5"),
        (tidegate.Choice("dgc", 0.1, clip=float("inf")), "clip inf"),
        (tidegate.Decision("dense", apart=[([99], "bf16")]), 'layer 99 in "apart"'),
        (tidegate.Decision("dense", dropped=[7, 7]), '"dropped"'),
        (tidegate.Decision("dense", apart=[([0], None)]), "which is no choice"),
    ],
)
def test_nonsense_is_refused_with_policy_step_and_bucket(answer, words):
    def nonsense(question):
        return answer if question.step == 1 and question.bucket == 0 else "dense"

    with pytest.raises(tidegate.Error) as caught:
        run(nonsense, 3)
    assert caught.value.kind == "config"
    assert re.match(r'policy ".*nonsense", step 1, bucket 0: ', str(caught.value))
    assert words in str(caught.value)


def test_layers_may_go_apart_and_lose_their_residual(tmp_path):
    def vectors_stay_dense(question):
        vectors = [i for i, (_, _, rows) in enumerate(question.layers) if rows == 0]
        dropped = [i for i in range(len(question.layers)) if i not in vectors]
        return tidegate.Decision(
            tidegate.Choice("topk", ratio=0.25, select="exactly"),
            apart=[(vectors, ("dense", "small"))],
            dropped=dropped if question.step == 2 else [],
            reason="vectors are small",
        )

    trace = tmp_path / "trace.jsonl"
    outcome = run(vectors_stay_dense, 4, trace=trace)
    assert set(outcome.choices) == {"topk 0.25 in 16 bits by allgather", "dense by engine"}
    events = [json.loads(line) for line in trace.read_text().splitlines()]
    decisions = [event for event in events if event["kind"] == "decision" and "apart" in event]
    assert decisions[0]["apart"][0]["choice"]["method"] == "dense"
    assert decisions[0]["choice"]["select"] == "exactly"
    assert decisions[0]["reason"] == "vectors are small"
    assert any(event["step"] == 2 and event["dropped"] for event in decisions if "dropped" in event)


def test_batches_and_learning_rates_grow_together():
    class Grows(tidegate.policies.OwnPolicy):
        def decide(self, question):
            return "dense"

        def batches_per_step(self):
            return 2

        def rate_scale(self):
            return 2.0

    task = make_task()
    before = task.optimizer.param_groups[0]["lr"]
    cluster = tidegate.VirtualCluster(task, 2, policy=Grows(), compute_seconds=0.01)
    cluster.run(3)
    assert task.optimizer.param_groups[0]["lr"] == pytest.approx(2 * before)


def test_an_exception_says_where_in_the_users_file_it_began():
    with pytest.raises(tidegate.Error) as caught:
        run(raises, 4)
    assert re.search(
        r'policy "test_own_policy:raises", step 2, bucket 1: raised ZeroDivisionError: division by '
        r"zero \(test_own_policy.py, line \d+\)",
        str(caught.value),
    )


def test_unknown_needs_are_refused():
    class Wants(OwnPolicy):
        needs = ("gradients",)

        def decide(self, question):
            return "dense"

    with pytest.raises(tidegate.Error, match="known are reacts"):
        run(Wants())


def test_options_of_fixed_do_not_go_with_it():
    with pytest.raises(tidegate.Error, match='ratio: these arguments go with policy="fixed"'):
        tidegate.VirtualCluster(make_task(), 2, policy=raises, ratio=0.1)
    with pytest.raises(tidegate.Error, match="nor a function of your own"):
        tidegate.VirtualCluster(make_task(), 2, policy=7)


# --- in real processes ---


def ratio_by_backlog(question):
    if question.backlog is None:
        return "dense", "nothing is known yet"
    return "topk", 0.1 if question.backlog < 5 else 0.5


def train_with_it(rank, ranks):
    model = wrap(mlp())
    handle = tidegate.attach(model, sgd(model), policy=ratio_by_backlog, timeout=20)
    train(model, sgd(model), batches(rank, 30))
    handle.detach()
    return handle.stats()["choices"]


def test_real_processes_decide_alike():
    first, second = results(train_with_it, 2)
    assert first == second
    assert len(first) >= 2


class ThrowsOn(OwnPolicy):
    """In one bucket of one step, on the ranks that were given."""

    def __init__(self, throws: bool, how: str):
        self.throws, self.how = throws, how

    def decide(self, question):
        if self.throws and question.step == 3 and question.bucket == 1:
            if self.how == "nonsense":
                return "topkk"
            raise ValueError("my bug")
        return "dense"


def train_until_it_throws(rank, ranks, who, how):
    model = wrap(mlp())
    policy = ThrowsOn(rank in who, how)
    began = None
    try:
        tidegate.attach(model, sgd(model), policy=policy, timeout=30)
        optimizer = sgd(model)
        for data in batches(rank, 100):
            began = time.monotonic()
            train(model, optimizer, [data])
    except tidegate.Error as error:
        error.args = (error.args[0], f"{error} [after {time.monotonic() - began:.1f} s]")
        raise


@pytest.mark.parametrize(
    ("who", "how"),
    [((0, 1), "exception"), ((1,), "exception"), ((0,), "exception"), ((0, 1), "nonsense")],
    ids=str,
)
def test_a_policy_that_throws_stops_all_ranks(who, how):
    outcomes = run_ranks(train_until_it_throws, 2, who, how, limit=40)
    for rank, outcome in enumerate(outcomes):
        assert outcome.exit_code == 3, outcome
        if rank in who:
            assert outcome.kind == "config", outcome
            assert re.search(r'policy "test_own_policy:ThrowsOn", step 3, bucket 1', outcome.text)
            assert ("my bug" if how == "exception" else '"topkk"') in outcome.text
        else:
            # Long before the time-out of 30 s: the other has left, and its connection is closed.
            assert outcome.kind == "peer", outcome
            assert f"rank {rank} of 2 gave up in step 3" in outcome.text


# Ratios make messages of different lengths, methods different messages, routes and dense other
# collectives; two 16-bit sums and layers that go apart are alike in their first message.
DIFFERENT = {
    "ratios": ("topk 0.1", "topk 0.3", [("topk", 0.1), ("topk", 0.3)]),
    "methods": ("topk 0.1", "int8", [("topk", 0.1), "int8"]),
    "dense": ("dense", "topk 0.1", ["dense", ("topk", 0.1)]),
    "nonsense": ("dense", "topkk", ["dense", "topkk"]),
    "routes": (
        "topk 0.1",
        "topk 0.1 route=owner",
        [("topk", 0.1), tidegate.Choice("topk", ratio=0.1, route="owner")],
    ),
    "16 bits": ("bf16", "fp16", ["bf16", "fp16"]),
    "layers": (
        r"topk 0.1; layers \[1\]: dense",
        "topk 0.1",
        [tidegate.Decision(("topk", 0.1), apart=[([1], "dense")]), ("topk", 0.1)],
    ),
}


def train_until_ranks_differ(rank, ranks, name):
    ways = DIFFERENT[name][2]

    def policy(question):
        return ways[rank == 1 and question.step >= 3 and question.bucket == 0]

    model = wrap(mlp())
    tidegate.attach(model, sgd(model), policy=policy, timeout=30)
    train(model, sgd(model), batches(rank, 6))


@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_that_decide_differently_are_told_what_each_of_them_decided(name):
    usual, other, _ = DIFFERENT[name]
    for rank, outcome in enumerate(run_ranks(train_until_ranks_differ, 3, name, limit=40)):
        assert (outcome.kind, outcome.exit_code) == ("config", 3), outcome
        assert re.match(rf'rank {rank} of 3, step 3: policy ".*", step 3, bucket 0: ', outcome.text)
        assert re.search(
            rf"ranks decide differently: rank 0 \[{usual}\], rank 1 \[{other}\]", outcome.text
        ), outcome.text


def leaves_before_step_3(rank, ranks):
    model = wrap(mlp())
    handle = tidegate.attach(model, sgd(model), policy=lambda question: "dense", timeout=30)
    train(model, sgd(model), batches(rank, 3))
    if rank == 1:
        handle.detach()
        time.sleep(3)  # stays alive, so that no connection breaks
        return ""
    with pytest.raises(tidegate.Error) as caught:
        train(model, sgd(model), batches(rank, 1))
    return str(caught.value)


def test_a_rank_that_has_left_is_named_when_answers_are_compared():
    texts = results(leaves_before_step_3, 2)
    assert "gave up in step 3, bucket 0, round 1" in texts[0], texts[0]
    assert "rank 1 has left after 3 steps" in texts[0] or "closed by peer" in texts[0]


def reasons_of_ones_own(rank, ranks):
    model = wrap(mlp())
    handle = tidegate.attach(
        model, sgd(model), policy=lambda question: ("topk", 0.1, f"rank {rank} says so"), timeout=30
    )
    train(model, sgd(model), batches(rank, 3))
    handle.detach()


def test_ranks_may_have_reasons_of_their_own():
    results(reasons_of_ones_own, 2)


class Sure(OwnPolicy):
    compared = False

    def decide(self, question):
        return "dense"


def not_compared(rank, ranks):
    model = wrap(mlp())
    handle = tidegate.attach(model, sgd(model), policy=Sure, timeout=30)
    train(model, sgd(model), batches(rank, 1))  # before which ranks compare what they have loaded
    handle._engine.start_aside = None  # would raise
    train(model, sgd(model), batches(rank, 2))
    handle.detach()


def test_a_policy_that_is_sure_need_not_be_compared():
    results(not_compared, 2)


def attach_another_version(rank, ranks):
    model = wrap(mlp())
    mine = ratio_by_backlog if rank == 0 else raises
    policy = tidegate.policies.Policy("mine", own=mine)
    tidegate.attach(model, sgd(model), policy=policy, timeout=20)


def test_ranks_with_other_versions_of_a_policy_are_told():
    for outcome in run_ranks(attach_another_version, 2, limit=40):
        assert outcome.kind == "config", outcome
        assert "rank 1 has other settings than rank 0" in outcome.text


# --- on the command line, and from examples ---


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    spec = importlib.util.spec_from_file_location("own_policy_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_examples_policies_do_what_they_say(example):
    by_gain = run(example.careful, 12).choices
    assert any(choice.startswith("topk 0.25") for choice in by_gain)
    limited = run(example.BacklogBelow(limit=1.0), 30).choices
    assert any(choice.startswith("dense") for choice in limited)
    assert len(limited) > 3, "the ratio follows the backlog"


def test_the_example_runs(capsys, example):
    example.main()
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(r"BacklogBelow: [\d.]+% of dense", out)


def test_simulate_takes_module_and_function(capsys, example, tmp_path):
    trace = tmp_path / "run.jsonl"
    options = ("--ranks", "2", "--steps", "6", "--no-baselines", "--quiet", "--json", "-")
    policy = ("--policy", "own_policy:careful", "--trace", str(trace))
    assert cli.main(["simulate", "--task", "small_task:make_task", *policy, *options]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert row["policy"] == "own_policy:careful"
    assert cli.main(["replay", str(trace)]) == 0
    assert "decisions repeated" in capsys.readouterr().out


def test_a_synthetic_job_takes_it_too(capsys, example):
    options = ("--ranks", "16", "--steps", "30", "--no-baselines", "--quiet", "--json", "-")
    assert (
        cli.main(["simulate", "--synthetic", "--policy", "own_policy:BacklogBelow", *options]) == 0
    )
    assert json.loads(capsys.readouterr().out)["runs"][0]["policy"] == "own_policy:BacklogBelow"


def test_a_module_that_is_not_there_is_told(capsys):
    assert cli.main(["simulate", "--policy", "nowhere:careful", "--steps", "1"]) == 2
    assert "write module:function, and look at PYTHONPATH" in capsys.readouterr().err
    assert cli.main(["simulate", "--policy", "json:careful", "--steps", "1"]) == 2
    assert "module json has no function 'careful'" in capsys.readouterr().err


def test_the_name_of_a_policy_is_what_the_command_line_takes():
    assert own_policy.name_of(raises) == "test_own_policy:raises"
    assert own_policy.name_of(Counting()) == own_policy.name_of(Counting)


def test_a_recorded_run_names_it(tmp_path):
    record(tmp_path / "run.jsonl", policy=ratio_by_backlog)
    start = _core.trace_start(str(tmp_path / "run.jsonl"))
    assert start["own_policy"]
    assert start["policy"] == "test_own_policy:ratio_by_backlog"
