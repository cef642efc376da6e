# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from training import digest, mlp, sgd

import tidegate
from tidegate import _core

pytestmark = pytest.mark.usefixtures("one_thread")


def batches(worker, workers, epoch):
    generator = torch.Generator().manual_seed(1000 * epoch + worker)
    for _ in range(4):
        yield (
            torch.randn(16, 32, generator=generator),
            torch.randint(0, 10, (16,), generator=generator),
        )


def make_task(seed=0, **options):
    model = mlp(seed=seed)
    return tidegate.Task(
        model, sgd(model), batches, lambda m, batch: cross_entropy(m(batch[0]), batch[1]), **options
    )


@pytest.mark.parametrize("row", _core.methods(), ids=lambda row: row["name"])
def test_every_method_runs_by_every_route(row):
    level = {"ratio": {"ratio": 0.1}, "rank": {"rank": 2}, "none": {}}[row["level"]]
    for route in row["routes"]:
        for prefix in ("", "hosts+"):
            cluster = tidegate.VirtualCluster(
                make_task(),
                3,
                "1gbit,1ms",
                method=row["name"],
                route=prefix + route,
                hosts=[0, 0, 1],
                check=True,
                **level,
            )
            outcome = cluster.run(3)
            assert outcome.steps == 3
            assert outcome.modelled_wire_seconds > 0
            assert 0 < outcome.bytes_sent < 2.1 * outcome.dense_bytes


def test_the_outcome_tells_what_the_task_measures_and_goes_on_where_it_stopped():
    task = make_task(evaluate=lambda model: {"weights": sum(p.numel() for p in model.parameters())})
    cluster = tidegate.VirtualCluster(task, 4, method="artopk-star", ratio=0.1)
    seen = []
    cluster.run(2, progress=lambda step, loss: seen.append((step, loss)))
    outcome = cluster.run(2)
    assert [step for step, _ in seen] == [1, 2]
    assert outcome.steps == 4
    assert outcome.figures == {"weights": sum(p.numel() for p in task.model.parameters())}
    assert outcome.modelled_wire_seconds is None
    assert outcome.roots == {0: 1, 1: 1, 2: 1, 3: 1}  # they take turns
    assert outcome.ratio == outcome.as_dict()["ratio"] < 0.5


def test_compute_time_is_given_or_measured_and_part_of_the_modelled_time():
    given = tidegate.VirtualCluster(make_task(), 2, "1gbit,1ms", method="bf16", compute_seconds=0.5)
    outcome = given.run(4)
    assert outcome.compute_seconds == 0.5
    assert outcome.modelled_seconds == pytest.approx(4 * 0.5 + outcome.modelled_exposed_seconds)
    # Latency and compression are exposed too, and nothing but the last bucket is on the wire late.
    assert 0 < outcome.modelled_wire_seconds < outcome.modelled_exposed_seconds
    measured = tidegate.VirtualCluster(make_task(), 2, "1gbit,1ms", method="bf16").run(4)
    assert 0 < measured.compute_seconds < measured.seconds
    assert measured.modelled_wire_seconds == pytest.approx(outcome.modelled_wire_seconds)
    assert tidegate.VirtualCluster(make_task(), 2, method="bf16").run(1).modelled_seconds is None


def test_a_model_stands_for_one_so_many_times_as_large():
    def made(link, scale):
        return tidegate.VirtualCluster(
            make_task(), 2, link, method="int8", compute_seconds=0.5, scale=scale
        )

    small, cluster = made("1mbit,1ms", 1).run(4), made("1gbit,1ms", 1000)
    large = cluster.run(4)
    assert large.modelled_wire_seconds == pytest.approx(small.modelled_wire_seconds)
    assert large.bytes_sent == small.bytes_sent  # what the model here has sent
    assert large.modelled_seconds > small.modelled_seconds  # compressing counts as often
    once_more = cluster.alike("fixed:method=int8").run(4)
    assert once_more.modelled_wire_seconds == pytest.approx(large.modelled_wire_seconds)


def test_a_policy_reckons_with_what_compressing_takes_times_the_scale():
    def chosen(link, scale):
        options = {"policy": "auto", "compute_seconds": 0.05, "scale": scale}
        return set(tidegate.VirtualCluster(make_task(), 2, link, **options).run(8).choices)

    many = 1e6
    assert all("by engine" in c and "dense" in c for c in chosen(f"{many:.0f}mbit,1ms", many))
    assert not any("dense" in choice for choice in chosen("1mbit,1ms", 1))


def test_sessions_live_in_modelled_time():
    outcomes = []
    for _ in range(2):
        cluster = tidegate.VirtualCluster(
            make_task(), 2, "100mbit,1ms", method="topk", ratio=0.1, compute_seconds=0.05
        )
        outcomes.append(cluster.run(30))
    one, other = outcomes
    assert one.modelled_wire_seconds == other.modelled_wire_seconds
    totals = cluster._sessions[0].totals()
    assert totals["wire_seconds"] > one.modelled_wire_seconds  # counts latencies as well
    assert totals["compress_seconds"] > 0  # measured
    compute, buckets = cluster._sessions[0].times()
    assert compute == pytest.approx(0.05, rel=0.01)
    assert len(buckets) == 1
    network = cluster._sessions[0].network()
    assert network.price("all-gather", 1000) == pytest.approx(
        _core.Network(2, 2, "100mbit,1ms").price("all-gather", 1000), rel=0.05
    )


def test_a_link_may_change():
    schedule = _core.LinkSchedule.from_text("0 1gbit,0ms\n10 10mbit,0ms\n")
    cluster = tidegate.VirtualCluster(
        make_task(), 2, schedule, method="dense", compute_seconds=0.01
    )
    cluster.run(20)
    before, after = cluster._modelled[9][2], cluster._modelled[10][2]
    assert after == pytest.approx(100 * before)


class Noisy(nn.Module):
    """Its dropout draws as many numbers as there are elements in its input."""

    def __init__(self):
        super().__init__()
        self.body = mlp()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.body(self.dropout(x))


def noisy_task(seen=None):
    torch.manual_seed(0)
    model = Noisy()

    def loss(model, batch):
        kept = model.dropout(torch.ones(64))
        if seen is not None:
            seen.append(tuple(kept.tolist()))
        return cross_entropy(model(batch[0]), batch[1]) + 0 * kept.sum()

    return tidegate.Task(model, sgd(model), batches, loss)


def test_dropout_depends_on_seed_step_and_worker_only():
    seen = {}
    for run, (ranks, seed) in {"first": (3, 0), "fewer": (2, 0), "other": (3, 1)}.items():
        seen[run] = []
        cluster = tidegate.VirtualCluster(noisy_task(seen[run]), ranks, method="dense", seed=seed)
        torch.manual_seed(len(seen))  # whatever was drawn before
        cluster.run(2)
    masks = seen["first"]
    assert len(set(masks)) == 6
    assert [masks[i] for i in (0, 1, 3, 4)] == seen["fewer"]
    assert not set(masks) & set(seen["other"])


def test_random_numbers_of_the_caller_are_left_alone():
    cluster = tidegate.VirtualCluster(noisy_task(), 2, method="dense")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    cluster.step()
    assert torch.equal(torch.rand(3), expected)


def test_before_step_sees_the_mean_and_may_change_it():
    norms = []

    def clip(model):
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.01)))

    before = digest(mlp())
    clipped, free = make_task(before_step=clip), make_task()
    for task in (clipped, free):
        tidegate.VirtualCluster(task, 2, method="dense").run(3)
    assert len(norms) == 3
    assert min(norms) > 0.01
    assert len({before, digest(clipped.model), digest(free.model)}) == 3


def test_a_parameter_without_a_gradient_counts_as_zero_and_one_without_any_is_left_alone():
    model = mlp()
    model.unused = nn.Parameter(torch.ones(7))
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    model.frozen = frozen
    model.sometimes = nn.Parameter(torch.ones(2))

    def loss(model, batch):
        seldom = model.sometimes.sum() if batch[1][0] < 5 else 0
        return cross_entropy(model(batch[0]), batch[1]) + seldom

    decaying = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    task = tidegate.Task(model, decaying, batches, loss)
    tidegate.VirtualCluster(task, 3, method="topk", ratio=0.1, check=True).run(3)
    assert torch.equal(model.unused, torch.ones(7))
    assert model.unused.grad is None
    assert frozen.grad is None
    assert (model.sometimes < 1).all()


def test_sparse_gradients_are_refused():
    table = nn.Embedding(8, 4, sparse=True)
    task = tidegate.Task(
        table,
        torch.optim.SGD(table.parameters(), lr=0.1),
        lambda worker, workers, epoch: [torch.tensor([1, 2])],
        lambda model, batch: model(batch).sum(),
    )
    with pytest.raises(tidegate.Error, match="sparse gradients") as caught:
        tidegate.VirtualCluster(task, 2, method="dense").run(1)
    assert caught.value.kind == "unsupported"


def test_evaluation_leaves_frozen_layers_as_they_were():
    task = make_task(evaluate=lambda model: {"training": float(model.training)})
    task.model[0].eval()
    outcome = tidegate.VirtualCluster(task, 2, method="dense").run(1)
    assert outcome.figures == {"training": 0.0}
    assert [module.training for module in task.model.modules()] == [True, False] + 4 * [True]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"ranks": 0}, "ranks 0"),
        ({"link": "fast"}, "write for example 100mbit,2ms"),
        ({"method": "topkk"}, "unknown method"),
        ({"method": "topk"}, "needs a ratio"),
        ({"hosts": [0, 1]}, "hosts of 2 ranks"),
        ({"task": "imagenet"}, "unknown task 'imagenet'; known: fashion-mnist"),
        ({"task": lambda: 3}, "returned int"),
        ({"compute_seconds": -1.0}, "compute_seconds -1.0"),
        ({"compute_seconds": float("nan")}, "compute_seconds nan"),
        ({"scale": -1.0}, "scale -1: must be from 1e-06"),
        ({"scale": float("nan")}, "scale nan"),
        ({"buckets": [["0.weight"]]}, "every trained parameter once"),
    ],
)
def test_mistakes_are_told(arguments, text):
    options = {"task": make_task(), "ranks": 3, "method": "dense", **arguments}
    with pytest.raises(tidegate.Error, match=text) as caught:
        tidegate.VirtualCluster(**options)
    assert caught.value.kind == "config"


def test_a_task_without_batches_is_an_error_and_no_endless_loop():
    task = make_task()
    task.batches = lambda worker, workers, epoch: []
    with pytest.raises(tidegate.Error, match="no batches for 2 workers"):
        tidegate.VirtualCluster(task, 2, method="dense").run(1)


def test_workers_must_have_equally_many_batches():
    task = make_task()
    task.batches = lambda worker, workers, epoch: list(batches(0, 1, 0))[worker:]
    with pytest.raises(tidegate.Error, match="worker 1 of 2 has fewer batches"):
        tidegate.VirtualCluster(task, 2, method="dense").run(4)


def test_models_it_cannot_read_are_refused():
    for model in (mlp().double(), copy.deepcopy(mlp()).bfloat16()):
        task = tidegate.Task(model, sgd(model), batches, lambda m, b: m(b[0]).sum())
        with pytest.raises(tidegate.Error, match="takes fp32 on the CPU"):
            tidegate.VirtualCluster(task, 2, method="dense")
