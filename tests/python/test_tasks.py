# SPDX-License-Identifier: Apache-2.0
"""Tasks that come with Tidegate, and how the user's own are found."""

import sys
from pathlib import Path

import pytest
import torch
from test_virtual_cluster import make_task

import tidegate
from tidegate import king_james, tasks
from tidegate.tasks import characters


def parameters(task):
    return torch.cat([p.detach().flatten() for p in task.model.parameters()])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", tasks.TASKS)
def test_a_task_learns_in_two_steps_what_its_seed_says(name):
    made = [tasks.find(name, seed=seed, steps=2) for seed in (3, 3, 4)]
    assert made[0].name == name
    for task in made:
        task.evaluate = None  # looked at below
        cluster = tidegate.VirtualCluster(task, 2, method="topk", ratio=0.1, check=True)
        before = parameters(task)
        cluster.run(2)
        assert not torch.equal(parameters(task), before)
        assert task.optimizer.param_groups[0]["lr"] == 0  # the schedule has come to its end
        assert cluster.losses[0] < 5.0
    assert torch.equal(parameters(made[0]), parameters(made[1]))
    assert not torch.equal(parameters(made[0]), parameters(made[2]))
    assert len(parameters(made[0])) < 0.85e6


@pytest.mark.parametrize("name", tasks.TASKS)
def test_workers_share_the_data_without_overlap(name):
    task = tasks.find(name)
    counts = {len(task.batches(worker, 3, 0)) for worker in range(3)}
    assert len(counts) == 1
    (count,) = counts
    assert count > 100
    firsts = [task.batches(worker, 3, epoch)[5][0] for epoch in (0, 1) for worker in range(3)]
    for i, one in enumerate(firsts):
        for other in firsts[:i]:
            assert not torch.equal(one, other)
    task.batches(2, 3, 0)[count - 1]
    with pytest.raises(IndexError):
        task.batches(2, 3, 0)[count]


def test_the_gpt_looks_at_no_later_character():
    task = tasks.find("char-gpt")
    task.model.eval()
    inputs, targets = task.batches(0, 1, 0)[0]
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    changed = inputs.clone()
    changed[:, 40:] = 0
    one, other = task.model(inputs), task.model(changed)
    assert torch.allclose(one[:, :40], other[:, :40], atol=1e-5)
    assert not torch.allclose(one[:, 40:], other[:, 40:], atol=1e-2)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["char-gpt", "char-lstm"])
def test_text_tasks_are_evaluated_in_bits_per_character(name, monkeypatch):
    monkeypatch.setattr(characters, "EVALUATED", 32)
    monkeypatch.setattr(characters, "EVALUATED_AT_ONCE", 16)
    task = tasks.find(name)
    task.model.eval()
    figures = task.evaluate(task.model)
    assert next(iter(figures)) == task.figure == "bits_per_character"
    assert 5 < figures["bits_per_character"] < 7  # an alphabet of 63, and nothing learned yet
    assert figures["perplexity"] == pytest.approx(2 ** figures["bits_per_character"])


def test_the_lstm_clips_the_mean():
    task = tasks.find("char-lstm")
    for parameter in task.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    task.before_step(task.model)
    norm = torch.cat([p.grad.flatten() for p in task.model.parameters()]).norm()
    assert norm == pytest.approx(0.25, rel=1e-3)


# --- the text ---


def test_the_text_is_whole():
    text = king_james.load()
    assert text.startswith("In the beginning God created the heaven and the earth.\n")
    assert text.endswith("The grace of our Lord Jesus Christ be with you all. Amen.\n")
    assert text.count("\n") == 31102  # verses
    assert not any(character.isdigit() for character in text)


def installed(folder):
    return Path(folder, king_james.FILE)


@pytest.fixture
def place(monkeypatch, tmp_path):
    monkeypatch.setenv("TIDEGATE_DATA", str(tmp_path))
    king_james.load.cache_clear()
    yield tmp_path / "bible.data"
    king_james.load.cache_clear()


def test_a_missing_text_is_an_error_that_names_the_package(place):
    with pytest.raises(tidegate.Error, match="apt-get install bible-kjv-text") as caught:
        king_james.load()
    assert caught.value.kind == "config"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"plain text" + data,
        lambda data: data[:200],
        lambda data: data[:-100],
        lambda data: data[:0x58] + b"\xff\xff\xff\xff" + data[0x5C:],
        lambda data: data[:400] + b"\xff" * 1000 + data[1400:],
    ],
)
def test_a_damaged_text_is_an_error(place, damage):
    whole = next(path for path in map(installed, king_james.PLACES) if path.is_file())
    place.write_bytes(damage(whole.read_bytes()))
    with pytest.raises(tidegate.Error, match="cannot be used") as caught:
        king_james.load()
    assert caught.value.kind == "config"


# --- by name ---


@pytest.fixture
def own_module(monkeypatch, tmp_path):
    (tmp_path / "my_tasks.py").write_text(
        "from test_virtual_cluster import make_task\n"
        "given = {}\n"
        "def plain():\n    return make_task()\n"
        "def seeded(seed, steps=7):\n"
        "    given.update(seed=seed, steps=steps)\n    return make_task(seed)\n"
        "def wrong():\n    return 3\n"
        "number = 3\n"
    )
    (tmp_path / "broken_tasks.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("my_tasks", "broken_tasks"):
        sys.modules.pop(name, None)


def test_a_function_of_the_users_own_is_found_and_told_what_it_asks_for(own_module):
    assert isinstance(tasks.find("my_tasks:plain", seed=5), tidegate.Task)
    assert isinstance(tasks.find("my_tasks:seeded", seed=5, steps=9), tidegate.Task)
    assert sys.modules["my_tasks"].given == {"seed": 5, "steps": 9}
    cluster = tidegate.VirtualCluster("my_tasks:seeded", 2, method="dense", seed=6)
    assert sys.modules["my_tasks"].given["seed"] == 6
    assert torch.equal(parameters(cluster.task), parameters(make_task(6)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("my_tasks:missing", "has no function 'missing'"),
        ("my_tasks:number", "has no function 'number'"),
        ("my_tasks:wrong", "returned int, not a tidegate.Task"),
        ("no_such_tasks:make", "No module named 'no_such_tasks'"),
        ("broken_tasks:make", "No module named 'no_such_module'"),
        ("my_tasks", "unknown task 'my_tasks'; known: fashion-mnist, char-gpt, char-lstm, or"),
        (":make", "unknown task ':make'"),
        (5, "5 is no task"),
    ],
)
def test_a_task_that_cannot_be_found_is_a_mistake(own_module, name, text):
    with pytest.raises(tidegate.Error, match=text) as caught:
        tasks.find(name)
    assert caught.value.kind == "config"
