# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in a folder: whatever goes wrong is told to all ranks, and nothing is lost by it."""

import errno
import json
import os
import random
from pathlib import Path

import pytest
import torch
from ranks import results, run_ranks
from training import attach, batches, digest, mlp, sgd, train, wrap

import tidegate
from tidegate import _core, durable


class Alone:
    """As a handle of a job with one rank, but without processes."""

    rank, ranks, label, disabled = 0, 1, "", False

    def __init__(self, seed: int = 0):
        self.session = _core.Session(0, 1, "fixed", {"method": "topk", "ratio": "0.1"})
        self.gradient = torch.randn(1000, generator=torch.Generator().manual_seed(seed))

    def step(self) -> "Alone":
        self.session.submit(self.gradient.data_ptr(), self.gradient.nbytes)
        _core.run_lockstep([self.session])
        return self

    def bits(self) -> bytes:
        return self._state().to_bytes()

    def _gather(self, value, what) -> list:
        return [value]

    def _state(self):
        return self.session.state()

    def _adopt(self, state, strict=True) -> None:
        self.session.load(state)


def test_a_checkpoint_comes_back(tmp_path):
    handle = Alone().step()
    tidegate.save(handle, tmp_path / "new" / "folder", {"epoch": 3, "model": torch.ones(2)})
    again = Alone()
    extra = tidegate.load(again, tmp_path / "new" / "folder")
    assert extra["epoch"] == 3 and extra["model"].tolist() == [1, 1]
    assert again.bits() == handle.bits()


def test_the_manifest_tells_what_is_there(tmp_path):
    handle = Alone().step().step()
    tidegate.save(handle, tmp_path)
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["format"] == "tidegate checkpoint"
    assert (content["version"], content["ranks"], content["step"]) == (1, 1, 2)
    assert content["tidegate"] == tidegate.__version__
    (state,) = content["states"]
    assert state["bytes"] == (tmp_path / state["name"]).stat().st_size == len(handle.bits())
    assert content["extra"] is None


def test_only_the_newest_checkpoint_stays_and_other_files_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-1-lost-rank-0-of-1.tidegate.unfinished").write_text("of a crash")
    handle = Alone()
    for _ in range(3):
        tidegate.save(handle.step(), tmp_path, {"step": 1})
    files = sorted(path.name.split("-")[0] for path in tmp_path.iterdir())
    assert files == ["manifest.json", "notes.txt", "step", "step"]


def test_a_folder_without_a_checkpoint(tmp_path):
    with pytest.raises(tidegate.Error, match=r"there is no checkpoint in .*missing_ok") as caught:
        tidegate.load(Alone(), tmp_path / "nowhere")
    assert caught.value.kind == "checkpoint"
    assert tidegate.load(Alone(), tmp_path / "nowhere", missing_ok=True) is None


def edit(change):
    """A damage that changes the manifest's content."""

    def damage(folder: Path):
        path = folder / "manifest.json"
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return damage


def the_file(folder: Path, kind: str) -> Path:
    (path,) = folder.glob(f"*-{kind}*.tidegate")
    return path


def cut(kind: str):
    def damage(folder: Path):
        path = the_file(folder, kind)
        os.truncate(path, path.stat().st_size // 2)

    return damage


def flip(kind: str):
    def damage(folder: Path):
        path = the_file(folder, kind)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return damage


def another_jobs_file(folder: Path):
    """With a manifest that names it: only the state itself can tell."""
    path = the_file(folder, "rank")
    session = _core.Session(1, 3, "fixed", {"method": "dense"})
    path.write_bytes(session.state().to_bytes())
    there = durable.look(path)
    edit(lambda content: content["states"][0].update(vars(there)))(folder)


def not_a_state(folder: Path):
    path = the_file(folder, "rank")
    path.write_bytes(b"something else altogether")
    there = durable.look(path)
    edit(lambda content: content["states"][0].update(vars(there)))(folder)


DAMAGES = {
    "manifest cut": (lambda f: os.truncate(f / "manifest.json", 50), "is damaged"),
    "manifest of nothing": (lambda f: (f / "manifest.json").write_bytes(b""), "is damaged"),
    "manifest not a text": (lambda f: (f / "manifest.json").write_bytes(b"\xff\0"), "is damaged"),
    "manifest a list": (lambda f: (f / "manifest.json").write_text("[]"), "is damaged"),
    "another format": (edit(lambda c: c.update(format="zip")), "its format is 'zip'"),
    "a newer version": (edit(lambda c: c.update(version=2)), "version 2, written by Tidegate"),
    "an older version": (edit(lambda c: c.update(version=0)), "is damaged"),
    "ranks that are not there": (edit(lambda c: c.update(ranks=7)), "is damaged"),
    "a step that is a text": (edit(lambda c: c.update(step="1")), "is damaged"),
    "a file elsewhere": (
        edit(lambda c: c["states"][0].update(name="../x")),
        "is no name of a file",
    ),
    "another label": (edit(lambda c: c.update(label="critic")), 'of the handle "critic"'),
    "state missing": (lambda f: the_file(f, "rank").unlink(), "No such file or directory"),
    "state half-written": (cut("rank"), r"has \d+ bytes instead of \d+"),
    "state corrupted": (flip("rank"), "another checksum"),
    "state of another job": (another_jobs_file, "is of rank 1 of 3 before step 0"),
    "state that is none": (not_a_state, "rank-0-of-1.tidegate: "),
    "extra missing": (lambda f: the_file(f, "extra").unlink(), "No such file or directory"),
    "extra half-written": (cut("extra"), r"has \d+ bytes instead of \d+"),
    "extra corrupted": (flip("extra"), "another checksum"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_checkpoint_is_an_error_and_changes_nothing(what, tmp_path):
    damage, text = DAMAGES[what]
    handle = Alone().step()
    tidegate.save(handle, tmp_path, {"model": torch.ones(1000)})
    damage(tmp_path)
    again = Alone(seed=1).step()
    before = again.bits()
    with pytest.raises(tidegate.Error, match=text) as caught:
        tidegate.load(again, tmp_path)
    assert caught.value.kind == "checkpoint"
    assert again.bits() == before


def test_random_damage_never_goes_unnoticed(tmp_path):
    handle = Alone().step()
    tidegate.save(handle, tmp_path)
    path = the_file(tmp_path, "rank")
    whole = path.read_bytes()
    choose = random.Random(7)
    for _ in range(50):
        content = bytearray(whole)
        content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
        path.write_bytes(content)
        with pytest.raises(tidegate.Error, match="another checksum"):
            tidegate.load(Alone(), tmp_path)


class Unsafe:
    """What torch.load(weights_only=True) refuses."""


@pytest.mark.parametrize("extra", [Unsafe(), {"f": lambda: 1}], ids=["class", "function"])
def test_an_extra_that_could_not_be_loaded_is_refused_when_it_is_saved(extra, tmp_path):
    tidegate.save(Alone().step(), tmp_path, {"epoch": 1})
    before = sorted(tmp_path.iterdir())
    with pytest.raises(tidegate.Error) as caught:
        tidegate.save(Alone().step().step(), tmp_path, extra)
    assert caught.value.kind == "checkpoint"
    assert sorted(tmp_path.iterdir()) == before
    assert tidegate.load(Alone(), tmp_path) == {"epoch": 1}


# --- the end, at any moment ---

OPERATIONS = ("open", "fsync", "replace", "unlink")


def die_at(number: int, counted=OPERATIONS):
    """Ends this process at its n-th operation on files, as kill -9 or a power failure would."""
    count = 0

    def watch(original):
        def operation(*args, **kwargs):
            nonlocal count
            count += 1
            if count == number:
                os._exit(9)
            return original(*args, **kwargs)

        return operation

    for name in counted:
        setattr(os, name, watch(getattr(os, name)))
    durable.open = watch(open)


def saved_in_a_process_that_dies(folder: Path, number: int) -> bool:
    """Whether it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            handle = Alone().step().step()
            die_at(number)
            tidegate.save(handle, folder, {"step": 2})
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 0


def test_a_crash_at_any_moment_leaves_a_checkpoint_that_loads(tmp_path):
    seen = set()
    for number in range(1, 100):
        tidegate.save(Alone().step(), tmp_path, {"step": 1})
        survived = saved_in_a_process_that_dies(tmp_path, number)
        again = Alone()
        extra = tidegate.load(again, tmp_path)
        assert again.session.step == extra["step"]
        seen.add(extra["step"])
        if survived:
            break
    assert survived
    assert number > 10
    assert seen == {1, 2}


# --- ranks ---


def same_text_on_all(rank, ranks, folder):
    """One rank after the other cannot write, or cannot read; the job goes on."""
    model = wrap(mlp())
    optimizer = sgd(model)
    handle = attach(model, optimizer)
    train(model, optimizer, batches(rank, 3))
    tidegate.save(handle, folder, {"step": 3})
    train(model, optimizer, batches(rank, 3, seed=2))
    before = handle._state().to_bytes()
    texts = []
    fsync = os.fsync
    for faulty in range(ranks):

        def full(descriptor, faulty=faulty):
            if rank == faulty:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(descriptor)

        os.fsync = full
        with pytest.raises(tidegate.Error) as caught:
            tidegate.save(handle, folder, {"step": 6})
        os.fsync = fsync
        assert caught.value.kind == "checkpoint"
        texts.append(str(caught.value))
    handle._gather(None)  # all have removed what they wrote
    names = sorted(os.listdir(folder))
    handle._gather(None)  # all have looked
    if rank == 1:
        os.rename(the_file(Path(folder), "rank-1"), f"{folder}/away")
    handle._gather(None)
    with pytest.raises(tidegate.Error) as caught:
        tidegate.load(handle, folder)
    texts.append(str(caught.value))
    assert handle._state().to_bytes() == before
    train(model, optimizer, batches(rank, 3, seed=3))
    return texts, names, digest(model)


def test_what_one_rank_cannot_do_is_told_to_all(tmp_path):
    outcomes = results(same_text_on_all, 2, str(tmp_path))
    assert outcomes[0] == outcomes[1]
    texts, names, _ = outcomes[0]
    for rank in range(2):
        assert texts[rank].startswith(f"rank {rank}: cannot write {tmp_path}")
        assert "No space left on device" in texts[rank]
        assert "the checkpoint before this one are untouched" in texts[rank]
    assert texts[2].startswith("rank 1: cannot read")
    assert len(names) == 4  # manifest, extra and two states: nothing half-written is left


def by_three_lines(rank, ranks, folder, first):
    model = wrap(mlp())
    optimizer = sgd(model)
    handle = attach(model, optimizer)
    saved = tidegate.load(handle, folder, missing_ok=True)
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    train(model, optimizer, list(batches(rank, 12))[first : first + 6])
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    tidegate.save(handle, folder, parts)
    return digest(model)


def never_stopped(rank, ranks):
    model = wrap(mlp())
    optimizer = sgd(model)
    attach(model, optimizer)
    train(model, optimizer, batches(rank, 12))
    return digest(model)


def test_model_optimizer_and_handle_are_of_one_step(tmp_path):
    results(by_three_lines, 2, str(tmp_path), 0)
    assert results(by_three_lines, 2, str(tmp_path), 6) == results(never_stopped, 2)


def apart(rank, ranks, folder):
    """Rank 1 saves a step late: its peers are in no step together."""
    handle = attach(wrap(mlp()))
    if rank == 1:
        state = handle._state
        handle._state = lambda: type("Late", (), {"step": 5, "layout": state().layout})()
    tidegate.save(handle, folder)


def test_ranks_at_different_steps_save_nothing(tmp_path):
    for outcome in run_ranks(apart, 2, str(tmp_path)):
        assert outcome.kind == "checkpoint"
        assert "rank 1 saves before step 5" in outcome.text
    assert os.listdir(tmp_path) == []


def disabled(rank, ranks, folder):
    os.environ["TIDEGATE_DISABLE"] = "1"
    model = wrap(mlp())
    handle = tidegate.attach(model, sgd(model))
    tidegate.save(handle, folder, {"epoch": 2})
    assert tidegate.load(handle, folder) == {"epoch": 2}
    del os.environ["TIDEGATE_DISABLE"]
    enabled = attach(model)
    extra = tidegate.load(enabled, folder)  # there is no state: nothing waits
    train(model, sgd(model), batches(rank, 2))
    return extra


def test_a_disabled_handle_still_saves_what_the_user_gives(tmp_path):
    assert results(disabled, 2, str(tmp_path)) == [{"epoch": 2}] * 2
