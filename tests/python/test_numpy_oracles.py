# SPDX-License-Identifier: Apache-2.0
"""Methods against their definitions written with numpy, which share no code with the library. (More
of them, bit for bit: tools/golden_sparsifiers.py, tools/golden_quantisers.py; PowerSGD against
torch's own hook: test_powersgd_oracle.py.)"""

import numpy as np
import pytest

from tidegate import _core

RANKS, STEPS, ELEMENTS, RATIO = 3, 4, 5000, 0.02
KEPT = int(RATIO * ELEMENTS)
SPARSE = {"ratio": RATIO, "bits": 32, "select": "exactly"}


def gradient(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng([rank, step]).standard_normal(ELEMENTS).astype(np.float32) ** 3


class Job:
    """Sessions of all ranks in lockstep."""

    def __init__(self, **options):
        options = {key: str(value) for key, value in options.items()}
        self.sessions = [_core.Session(r, RANKS, "fixed", options) for r in range(RANKS)]
        for session in self.sessions:
            session.lay_out(0, [("w", ELEMENTS, 0)])

    def step(self, gradients: list[np.ndarray]) -> np.ndarray:
        buffers = [g.astype(np.float32).copy() for g in gradients]
        for session, buffer in zip(self.sessions, buffers, strict=True):
            session.submit(buffer.ctypes.data, buffer.nbytes)
        _core.run_lockstep(self.sessions)
        for buffer in buffers:
            assert buffer.tobytes() == buffers[0].tobytes()
        return buffers[0]

    def residual(self, rank: int) -> np.ndarray:
        return np.frombuffer(self.sessions[rank].state().residual("w"), dtype=np.float32)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-np.abs(values), kind="stable")[:count]


def close(got: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("method", "dtype"), [("dense", np.float32), ("fp16", np.float16)])
def test_sent_whole(method, dtype):
    job = Job(method=method)
    for step in range(STEPS):
        gradients = [gradient(rank, step) for rank in range(RANKS)]
        total = np.zeros(ELEMENTS, dtype)
        for g in gradients:  # divided before the sum, rounded after every addition
            total = (total + (g * np.float32(1 / RANKS)).astype(dtype)).astype(dtype)
        assert np.array_equal(job.step(gradients), total.astype(np.float32))


def test_bf16():
    job = Job(method="bf16")
    gradients = [gradient(rank, 0) for rank in range(RANKS)]
    mean = np.mean(gradients, axis=0)
    size = np.mean(np.abs(gradients), axis=0)
    assert np.all(np.abs(job.step(gradients) - mean) <= 2.0**-8 * (RANKS + 1) * size)


def root_of(method: str, step: int, waiting: list[np.ndarray]) -> int:
    if method == "artopk-star":
        return step % RANKS
    energies = [np.sum(w[largest(w, KEPT)].astype(np.float64) ** 2) for w in waiting]
    return int(np.argmax(energies))


@pytest.mark.parametrize("method", ["topk", "artopk-star", "artopk-var"])
def test_the_largest(method):
    options = SPARSE if method == "topk" else {"ratio": RATIO, "select": "exactly"}
    job = Job(method=method, **options)
    waiting = [np.zeros(ELEMENTS, np.float32) for _ in range(RANKS)]
    for step in range(STEPS):
        gradients = [gradient(rank, step) for rank in range(RANKS)]
        got = job.step(gradients)
        for w, g in zip(waiting, gradients, strict=True):
            w += g
        chosen = [largest(w, KEPT) for w in waiting]
        if method != "topk":
            chosen = [chosen[root_of(method, step, waiting)]] * RANKS
        mean = np.zeros(ELEMENTS, np.float32)
        for w, indices in zip(waiting, chosen, strict=True):
            mean[indices] += w[indices] / RANKS
            w[indices] = 0
        assert close(got, mean)
        for rank in range(RANKS):
            assert np.array_equal(job.residual(rank), waiting[rank])


def test_random_k_takes_the_same_random_elements_of_all_ranks():
    job = Job(method="randomk", ratio=RATIO)
    seen = np.zeros(ELEMENTS)
    for step in range(60):
        before = [job.residual(r) if step else np.zeros(ELEMENTS) for r in range(RANKS)]
        gradients = [gradient(rank, step) for rank in range(RANKS)]
        got = job.step(gradients)
        indices = np.flatnonzero(got)
        assert len(indices) == KEPT
        full = [w + g for w, g in zip(before, gradients, strict=True)]
        assert close(got[indices], np.mean(full, axis=0)[indices])
        for rank in range(RANKS):
            rest = full[rank].copy()
            rest[indices] = 0
            assert close(job.residual(rank), rest)
        seen[indices] += 1
    # Every element has the same chance: the counts are binomial.
    chance = KEPT / ELEMENTS
    deviation = np.sqrt(60 * chance * (1 - chance) / ELEMENTS)
    assert abs(seen.mean() - 60 * chance) < 1e-9
    assert abs(seen.var() - 60 * chance * (1 - chance)) < 4 * np.sqrt(2) * 60 * chance * deviation


def test_dgc_sends_everything_above_some_threshold_about_k_of_it():
    job = Job(method="dgc", **SPARSE)
    waiting = [np.zeros(ELEMENTS, np.float32) for _ in range(RANKS)]
    for step in range(STEPS):
        gradients = [gradient(rank, step) for rank in range(RANKS)]
        got = job.step(gradients)
        mean = np.zeros(ELEMENTS, np.float32)
        for rank, (w, g) in enumerate(zip(waiting, gradients, strict=True)):
            w += g
            left = job.residual(rank)
            sent = np.flatnonzero(left != w)
            assert 0.7 * KEPT <= len(sent) <= KEPT
            assert set(sent) == set(largest(w, len(sent)))
            mean[sent] += w[sent] / RANKS
            w[sent] = 0
        assert close(got, mean)


def test_dgc_corrects_momentum():
    """u = m u + g; v = v + u; what is sent of v is zero in both."""
    momentum = 0.9
    job = Job(method="dgc", momentum=momentum, **SPARSE)
    velocity = [np.zeros(ELEMENTS, np.float32) for _ in range(RANKS)]
    waiting = [np.zeros(ELEMENTS, np.float32) for _ in range(RANKS)]
    for step in range(STEPS):
        gradients = [gradient(rank, step) for rank in range(RANKS)]
        job.step(gradients)
        for rank, (u, v, g) in enumerate(zip(velocity, waiting, gradients, strict=True)):
            u *= np.float32(momentum)
            u += g
            v += u
            left = job.residual(rank)
            sent = np.flatnonzero((left == 0) & (v != 0))
            assert 0.7 * KEPT <= len(sent) <= KEPT
            u[sent] = v[sent] = 0
            assert close(left, v)


def blocks(values: np.ndarray) -> list[np.ndarray]:
    return np.split(values, range(256, len(values), 256))


def test_qsgd_is_within_a_level_of_every_gradient_and_right_on_average():
    levels, steps = 127, 200
    job = Job(method="qsgd", bits=8)
    gradients = [gradient(rank, 0) for rank in range(RANKS)]
    mean = np.mean(gradients, axis=0)
    results = np.array([job.step(gradients) for _ in range(steps)])
    level = np.mean(
        [np.repeat([np.linalg.norm(b) for b in blocks(g)], 256)[:ELEMENTS] for g in gradients],
        axis=0,
    )
    assert np.all(np.abs(results - mean) <= level / levels * 1.0001)
    # Rounding errors are at most half a level in deviation, over ranks and steps independent.
    error = np.abs(results.mean(axis=0) - mean) * levels / level * np.sqrt(steps * RANKS)
    assert np.mean(error < 4 * 0.5) > 0.999


def test_terngrad_is_zero_or_the_scale_and_right_on_average():
    job, steps = Job(method="terngrad"), 400
    gradients = [np.clip(gradient(rank, 0), -1, 1) for rank in range(RANKS)]
    mean = np.mean(gradients, axis=0)
    results = np.array([job.step(gradients) for _ in range(steps)])
    scales = [min(np.abs(g).max(), 2.5 * np.sqrt(np.mean(g.astype(float) ** 2))) for g in gradients]
    for value in np.unique(results):  # sums of -s, 0 or s of each rank
        sums = np.array(np.meshgrid(*[[-s, 0, s] for s in scales])).reshape(RANKS, -1).sum(axis=0)
        assert np.min(np.abs(value * RANKS - sums)) < 1e-4
    clips = np.any([np.abs(g) > s for g, s in zip(gradients, scales, strict=True)], axis=0)
    error = np.abs(results.mean(axis=0) - mean) * np.sqrt(steps * RANKS) / np.mean(scales)
    assert np.mean(error[~clips] < 4 * 0.5) > 0.999
