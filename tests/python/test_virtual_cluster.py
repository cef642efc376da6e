# SPDX-License-Identifier: Apache-2.0
import copy

import pytest
import torch
from ranks import results
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from training import digest, mlp, sgd, train

import tidegate
from tidegate import _core
from tidegate.virtual_cluster import make_buckets

STEPS = 6


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


def first_batches(rank, ranks):
    """What a worker sees in the first steps."""
    return [*batches(rank, ranks, 0), *batches(rank, ranks, 1)][:STEPS]


def real_job(rank, ranks, options):
    model = DDP(mlp())
    handle = tidegate.attach(model, sgd(model), timeout=20, **options)
    train(model, sgd(model), first_batches(rank, ranks))
    bytes_sent = handle.stats()["bytes_sent"]
    handle.detach()
    return digest(model), bytes_sent


# Exactly: which elements a sampled threshold lets through depends on how buckets are laid out, and
# DDP lays out its first step in another order.
@pytest.mark.parametrize(
    "options",
    [
        {"policy": "fixed:method=topk,ratio=0.05,select=exactly"},
        {"policy": "fixed", "method": "dense"},
    ],
)
def test_two_virtual_workers_train_the_same_bits_as_two_real_ones(options):
    task = make_task()
    cluster = tidegate.VirtualCluster(task, 2, check=True, **options)
    outcome = cluster.run(STEPS)
    digests, sent = zip(*results(real_job, 2, options), strict=True)
    assert set(digests) == {digest(task.model)}
    assert outcome.bytes_sent == pytest.approx(sum(sent) / 2)


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


def test_buckets_are_cut_as_ddp_cuts_them():
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))  # 256 KiB each
    names = [[name for name, _ in bucket] for bucket in make_buckets(model, 0.5)]
    assert names[0] == ["7.weight", "6.weight"]
    assert [len(bucket) for bucket in names] == [2, 2, 2, 2]
    model[0].weight.requires_grad_(False)
    assert ["0.weight"] not in [[n for n, _ in b] for b in make_buckets(model, 0.5)]


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
