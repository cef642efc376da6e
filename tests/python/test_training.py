# SPDX-License-Identifier: Apache-2.0
"""What must hold while a job trains: same bits as DDP where nothing is left out, same bits on all
ranks always, and every mode of DDP."""

import json
import os
import threading

import pytest
import torch
from ranks import results, results_of_each
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from training import attach, batches, digest, mlp, sgd, train, waiting, wrap

import tidegate
from tidegate import _core

METHODS = [row["name"] for row in _core.methods()]


def dense_like_ddp(rank, ranks, options):
    plain, ours = wrap(mlp(), **options), wrap(mlp(), **options)
    handle = attach(ours, method="dense")
    for model in (plain, ours):
        train(model, sgd(model), batches(rank, 20))
    assert handle.stats()["steps"] == 20
    handle.detach()
    return digest(plain), digest(ours)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_dense_leaves_the_same_bits_as_plain_ddp(ranks):
    options = [({},), ({"gradient_as_bucket_view": True},)]
    for outcome in results_of_each(dense_like_ddp, ranks, options):
        assert len({bits for pair in outcome for bits in pair}) == 1


def train_method(rank, ranks, method, options):
    model = wrap(mlp(), **options)
    handle = attach(model, method=method)
    start = digest(model)
    train(model, sgd(model), batches(rank, 12))
    stats = handle.stats()
    handle.detach()
    assert digest(model) != start, method
    assert stats["steps"] == 12
    return digest(model), stats["ratio"]


@pytest.fixture(scope="module")
def outcomes_of_methods():
    outcomes = results_of_each(train_method, 3, [(method, {}) for method in METHODS])
    return dict(zip(METHODS, outcomes, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_leaves_all_ranks_with_the_same_bits(method, outcomes_of_methods):
    outcome = outcomes_of_methods[method]
    assert len({bits for bits, _ in outcome}) == 1
    if method != "dense":
        assert all(ratio < 0.6 for _, ratio in outcome)


MODES = [
    {"static_graph": True},
    {"find_unused_parameters": True},
    {"gradient_as_bucket_view": True},
    {"gradient_as_bucket_view": True, "static_graph": True},
    {"bucket_cap_mb": 25},
]


def test_every_mode_of_ddp_trains():
    outcomes = results_of_each(train_method, 2, [("topk", options) for options in MODES])
    for options, outcome in zip(MODES, outcomes, strict=True):
        assert len({bits for bits, _ in outcome}) == 1, options


def train_seeded(rank, ranks, method, seed):
    model = wrap(mlp())
    handle = attach(model, method=method, ratio=0.05, seed=seed)
    train(model, sgd(model), batches(rank, 3))
    handle.detach()
    return digest(model)


def test_a_seed_makes_random_methods_draw_other_numbers_and_repeats_them():
    drawing, certain = ("randomk", "qsgd", "terngrad", "powersgd"), ("dense", "int8")
    cases = [(method, seed) for method in (*drawing, *certain) for seed in (0, 7, 7, 8)]
    outcomes = results_of_each(train_seeded, 2, cases)
    for first in range(0, len(cases), 4):
        assert all(one == other for one, other in outcomes[first : first + 4])
        zero, seven, again, eight = (bits for bits, _ in outcomes[first : first + 4])
        method = cases[first][0]
        assert seven == again, method
        assert len({zero, seven, eight}) == (3 if method in drawing else 1), method


# --- the drivers agree ---

ROWS, COLUMNS = 40, 100
STEPS = 4


def gradient_of(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(ROWS, COLUMNS, generator=generator)


class Given(nn.Module):
    """Its gradient is whatever it is called with."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ROWS, COLUMNS))

    def forward(self, gradient):
        return (self.weight * gradient).sum()


def ways(routes_of_the_engine: bool) -> list[dict]:
    """Every method by every route, flat and by host; the engine's own sums only if asked for."""
    found = []
    for row in _core.methods():
        level = {"ratio": {"ratio": 0.03}, "rank": {"rank": 2}, "none": {}}[row["level"]]
        for route in row["routes"]:
            if (route == "engine") == routes_of_the_engine:
                found += [
                    {"method": row["name"], "route": prefix + route, **level}
                    for prefix in ("", "hosts+")
                ]
    return found


def averages_by_torch(rank, ranks, options_of_runs, hosts):
    os.environ["TIDEGATE_HOST"] = f"host {hosts[rank]}"
    runs = []
    for options in options_of_runs:
        model = DDP(Given())
        handle = tidegate.attach(model, sgd(model), policy="fixed", timeout=20, **options)
        averages = []
        for step in range(STEPS):
            model.zero_grad(set_to_none=True)
            model(gradient_of(rank, step)).backward()
            averages.append(model.module.weight.grad.numpy().tobytes())
        handle.detach()
        runs.append(averages)
    return runs


def averages_in_process(ranks, options, run, hosts=()):
    options = {key: str(value) for key, value in options.items()}
    sessions = [
        _core.Session(rank, ranks, "fixed", options, hosts=list(hosts)) for rank in range(ranks)
    ]
    for session in sessions:
        session.lay_out(0, [("weight", ROWS * COLUMNS, ROWS)])
    averages = [[] for _ in range(ranks)]
    for step in range(STEPS):
        buffers = [gradient_of(rank, step) for rank in range(ranks)]
        for session, buffer in zip(sessions, buffers, strict=True):
            session.submit(buffer.data_ptr(), 4 * buffer.numel())
        run(sessions)
        for rank, buffer in enumerate(buffers):
            averages[rank].append(buffer.numpy().tobytes())
    return averages


# With two ranks the order of addition does not matter: the engine's all-reduce is comparable too.
# With more, 16-bit sums of the engine's own round elsewhere; routes of our own never do.
@pytest.mark.parametrize(
    ("ranks", "hosts", "of_the_engine"), [(2, [0, 1], True), (3, [0, 0, 1], False)]
)
def test_torch_lockstep_and_threads_give_the_same_bytes(ranks, hosts, of_the_engine):
    options = ways(of_the_engine)
    by_torch = results(averages_by_torch, ranks, options, hosts)
    for number, chosen in enumerate(options):
        lockstep = averages_in_process(ranks, chosen, _core.run_lockstep, hosts)
        assert averages_in_process(ranks, chosen, _core.run_threads, hosts) == lockstep, chosen
        assert [of_rank[number] for of_rank in by_torch] == lockstep, chosen


def test_topk_agrees_with_torch_topk():
    """An oracle that shares no code: error feedback and top-k written with torch."""
    ranks, elements = 3, ROWS * COLUMNS
    kept = int(0.03 * elements)
    options = {"method": "topk", "ratio": 0.03, "bits": 32, "select": "exactly"}
    got = averages_in_process(ranks, options, _core.run_lockstep)[0]
    residuals = [torch.zeros(elements) for _ in range(ranks)]
    for step in range(STEPS):
        mean = torch.zeros(elements)
        for rank, residual in enumerate(residuals):
            residual += gradient_of(rank, step).reshape(-1)
            picked = residual.abs().topk(kept).indices
            mean[picked] += residual[picked] * torch.tensor(1.0 / ranks)
            residual[picked] = 0
        assert mean.numpy().tobytes() == got[step]


# --- overlap ---


class Gate(torch.autograd.Function):
    """Backward does not pass before `opened` is set: the layers in front of it get no gradient."""

    opened = threading.Event()

    @staticmethod
    def forward(ctx, inputs):
        return inputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        assert Gate.opened.wait(20), "no collective was issued while backward was still running"
        return gradient


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 96), nn.Linear(96, 10)

    def forward(self, inputs):
        return self.second(Gate.apply(self.first(inputs)))


def overlap(rank, ranks, trace):
    model = DDP(Gated(), bucket_cap_mb=0.001)
    handle = attach(model, method="topk", trace=trace)
    start = handle._engine.start

    def start_and_open(issue):
        operation = start(issue)
        if issue.bucket == 0:
            Gate.opened.set()
        return operation

    handle._engine.start = start_and_open
    for step, data in enumerate(batches(rank, 4)):
        # The first step has one bucket with the whole model, which cannot overlap.
        Gate.opened.set() if step == 0 else Gate.opened.clear()
        train(model, sgd(model), [data])
    handle.detach()


def test_bucket_0_is_issued_before_the_last_bucket_is_ready(tmp_path):
    trace = tmp_path / "trace.jsonl"
    results(overlap, 2, str(trace))
    steps = [event for event in map(json.loads, trace.open()) if event["kind"] == "step"]
    assert len(steps) == 4
    for step in steps[1:]:
        last = len(step["buckets"]) - 1
        assert last > 0
        times = {(what, bucket, round_): ms for ms, what, bucket, round_ in step["moments"]}
        assert times["issue", 0, 1] < times["ready", last, 0]


# --- modes of use ---


def accumulate(rank, ranks, method):
    plain, ours = wrap(mlp()), wrap(mlp())
    bits = 32 if method == "topk" else None  # as exact as dense
    handle = attach(ours, method=method, ratio=1.0, bits=bits)
    gradients = []
    for model in (plain, ours):
        data = list(batches(rank, 3))
        with model.no_sync():
            for inputs, targets in data[:2]:
                cross_entropy(model(inputs), targets).backward()
        cross_entropy(model(data[2][0]), data[2][1]).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()] + [norm[None]]))
    assert handle.stats()["steps"] == 1
    handle.detach()
    return gradients


def test_no_sync_accumulates_and_clipping_sees_the_mean():
    for outcome in results_of_each(accumulate, 2, [("dense",), ("topk",)]):
        for plain, ours in outcome:
            torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-8)


def uneven(rank, ranks, method):
    model = wrap(mlp())
    handle = attach(model, method=method)
    optimizer = sgd(model)
    with model.join():
        train(model, optimizer, batches(rank, 4 + 3 * rank))
    handle.detach()
    return digest(model)


def test_join_lets_ranks_end_at_different_steps():
    for digests in results_of_each(uneven, 3, [("dense",), ("topk",), ("artopk-star",)]):
        assert len(set(digests)) == 1


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8, sparse=True)
        self.head = nn.Linear(8, 10)
        self.factor = nn.Parameter(torch.ones(10, dtype=torch.float64))

    def forward(self, words):
        return self.head(self.table(words)).double() * self.factor


def sparse_and_double(rank, ranks, method):
    torch.manual_seed(0)
    template = Embedded()
    digests = []
    for hooked in (False, True):
        model = wrap(template)
        handle = attach(model, method=method) if hooked else None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(5):
            words = torch.randint(0, 50, (16,), generator=generator)
            targets = torch.randint(0, 10, (16,), generator=generator)
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(model(words), targets).backward()
            assert model.module.table.weight.grad.is_sparse
            optimizer.step()
        digests.append(digest(model))
    handle.detach()
    return digests


def test_sparse_and_double_buckets_pass_through():
    dense, compressed = results_of_each(sparse_and_double, 2, [("dense",), ("topk",)])
    assert len({bits for pair in dense for bits in pair}) == 1
    assert compressed[0][1] == compressed[1][1] != dense[0][0]


def half_model(rank, ranks, dtype, method):
    model = wrap(mlp().to(dtype))
    handle = attach(model, method=method, ratio=0.2)
    optimizer = sgd(model)
    for inputs, targets in batches(rank, 6):
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(model(inputs.to(dtype)).float(), targets).backward()
        optimizer.step()
    residuals = waiting(handle)
    handle.detach()
    assert all(r.dtype == torch.float32 for r in residuals.values())
    plain = wrap(mlp().to(dtype))
    optimizer = sgd(plain)
    for inputs, targets in batches(rank, 6):
        optimizer.zero_grad(set_to_none=True)
        cross_entropy(plain(inputs.to(dtype)).float(), targets).backward()
        optimizer.step()
    return digest(model), digest(plain), bool(residuals)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_buckets(dtype):
    dense, compressed = results_of_each(half_model, 2, [(dtype, "dense"), (dtype, "topk")])
    assert len({bits for ours, plain, _ in dense for bits in (ours, plain)}) == 1
    assert compressed[0][0] == compressed[1][0] != compressed[0][1]
    assert compressed[0][2]


def scaled(rank, ranks, method, overflow_step):
    model = wrap(mlp())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)
    handle = attach(model, method=method, scaler=scaler)
    optimizer = sgd(model)
    before = after = None
    scales = []
    for step, (inputs, targets) in enumerate(batches(rank, 10)):
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(model(inputs), targets)
        if step == overflow_step and rank == 1:
            loss = loss * float("inf")
        if step == overflow_step:
            before = digest(model)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if step == overflow_step:
            after = digest(model)
    assert before == after, "the step with the overflow must be skipped"
    residuals = waiting(handle)
    assert all(torch.isfinite(r).all() for r in residuals.values())
    assert handle.stats()["skipped_steps"] == (1 if residuals else 0)
    handle.detach()
    return digest(model), scales, {name: float(r.norm()) for name, r in residuals.items()}


def test_grad_scaler_skips_the_step_on_all_ranks():
    methods = ["dense", "topk", "artopk-star", "artopk-var", "powersgd"]
    outcomes = results_of_each(scaled, 2, [(method, 5) for method in methods])
    for method, (first, second) in zip(methods, outcomes, strict=True):
        assert first[:2] == second[:2], method
        scales = first[1]
        assert scales[5] == scales[4] / 2, method


def unscaled_twin(rank, ranks, scale):
    """The same job with and without a scaler: powers of two change no bit."""
    model = wrap(mlp())
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
    handle = attach(model, scaler=scaler)
    optimizer = sgd(model)
    for inputs, targets in batches(rank, 6):
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(cross_entropy(model(inputs), targets)).backward()
        scaler.step(optimizer)
        scaler.update()
    residuals = waiting(handle)
    handle.detach()
    return digest(model), residuals


def test_residuals_are_kept_in_unscaled_units():
    large, small = results_of_each(unscaled_twin, 2, [(4096.0,), (1.0,)])
    assert large[0][0] == small[0][0]
    for name, residual in large[0][1].items():
        assert torch.equal(residual, small[0][1][name])


def several_handles(rank, ranks):
    first, second = wrap(mlp(seed=1)), wrap(mlp(seed=2))
    handles = [attach(first, label="first"), attach(second, method="dense", label="second")]
    train(first, sgd(first), batches(rank, 5, seed=3))
    train(second, sgd(second), batches(rank, 5, seed=4))
    for inputs, targets in batches(rank, 3):  # and both in one backward
        cross_entropy(first(inputs) + second(inputs), targets).backward()
    return digest(first), digest(second), [handle.stats()["steps"] for handle in handles]


def test_several_handles_in_one_process():
    outcome = results(several_handles, 2)
    assert outcome[0] == outcome[1]
    assert outcome[0][2] == [8, 8]


def excluded(rank, ranks):
    plain, ours = wrap(mlp()), wrap(mlp())
    attach(ours, method="topk", ratio=0.01, exclude=["*.bias"])
    inputs, targets = next(batches(rank, 1))
    for model in (plain, ours):
        cross_entropy(model(inputs), targets).backward()
    pairs = zip(plain.module.named_parameters(), ours.module.parameters(), strict=True)
    return {name: torch.equal(p.grad, q.grad) for (name, p), q in pairs}


def test_excluded_parameters_stay_dense():
    for same in results(excluded, 2):
        assert same == {name: name.endswith("bias") for name in same}


def schedule(rank, ranks, trace):
    model = wrap(mlp())
    policy = "schedule:levels=0 topk 0.01;5 topk 0.1;10 dense"
    handle = attach(model, method=None, ratio=None, policy=policy, trace=trace)
    train(model, sgd(model), batches(rank, 30))
    residual = sum(float(r.square().sum()) for r in waiting(handle).values())
    handle.detach()
    return digest(model), residual


def test_a_schedule_changes_levels_and_releases_what_waits(tmp_path):
    trace = tmp_path / "trace.jsonl"
    outcome = results(schedule, 2, str(trace))
    assert outcome[0][0] == outcome[1][0]
    assert outcome[0][1] == outcome[1][1] == 0.0
    events = [json.loads(line) for line in trace.open()]
    assert all(event["v"] == 1 for event in events)
    assert [events[0]["kind"], events[-1]["kind"]] == ["start", "end"]
    # Alarms of the network are told as decisions too, without a choice.
    chosen = {event["step"]: event["choice"] for event in events if "choice" in event}
    topk = {"method": "topk", "ratio": 0.1, "bits": 16, "route": "allgather", "open_route": True}
    assert chosen[5] == topk
    assert chosen[10] == {"method": "dense", "route": "engine", "open_route": True}
