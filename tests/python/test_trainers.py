# SPDX-License-Identifier: Apache-2.0
"""Tidegate in Lightning, Accelerate and Hugging Face's Trainer: real frameworks, real processes."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate

ROOT = Path(__file__).parents[2]
RANKS = 2
TOLERANCE = 1e-4  # what rounding adds up to; a single gradient that is lost is larger by far
LIMIT = 280  # seconds: importing a framework in several processes at once takes its time

pytestmark = [pytest.mark.all, pytest.mark.timeout(2 * LIMIT + 30)]


def need(framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: tools/setup.sh --all does it")


def run(*command, **environment) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **environment},
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert "terminate called" not in done.stderr
    return done.stdout


def torchrun(*command, ranks: int = RANKS, **environment) -> str:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks)
    return run(*launcher, *command, **environment)


@pytest.mark.parametrize("framework", ["lightning", "accelerate", "transformers"])
def test_nothing_is_lost_by_saving_and_resuming(framework, tmp_path):
    need(framework)
    tests = ROOT / "tests/python"
    torchrun(tests / f"trainers/constant_{framework}.py", tmp_path, PYTHONPATH=str(tests))
    told = [json.loads((tmp_path / f"outcome-{rank}.json").read_text()) for rank in range(RANKS)]
    assert len({of_rank["digest"] for of_rank in told}) == 1
    for of_rank in told:
        assert of_rank["before"] > 1000 * TOLERANCE, "nothing waited, so nothing is shown"
        assert of_rank["after"] < TOLERANCE
        assert of_rank["steps"] == [5, 5]
        assert max(of_rank["ratios"]) < 0.2


def steps_of(output: str) -> list[int]:
    """What `print(handle.stats())` tells, on every rank."""
    return [int(steps) for steps in re.findall(r"\{'steps': (\d+)", output)]


STEPS = 32  # of an epoch in the examples


@pytest.mark.parametrize(
    "framework, example, launch, checkpoint",
    [
        ("lightning", "lightning_train.py", run, "last.ckpt"),
        ("accelerate", "accelerate_train.py", torchrun, "checkpoints/checkpoint_0"),
        ("transformers", "hf_trainer.py", torchrun, "checkpoint-32/tidegate/manifest.json"),
    ],
)
def test_examples_train_and_go_on(framework, example, launch, checkpoint, tmp_path):
    need(framework)
    for epochs in (1, 2):
        output = launch(ROOT / "examples" / example, "--folder", tmp_path, "--epochs", epochs)
        assert steps_of(output) == [STEPS] * RANKS
        assert (tmp_path / checkpoint).exists()


def losses_of(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"epoch \d loss ([\d.]+)", output)]


def plain_torch(script) -> str:
    """Nothing of ours is in it. Once in many runs a process of torch's aborts at its end."""
    try:
        return torchrun(script)
    except AssertionError as error:
        if "terminate called without an active exception" not in str(error):
            raise
        return torchrun(script)


def test_the_example_for_ddp_is_a_script_that_trains_and_three_lines(tmp_path):
    script = ROOT / "examples/ddp_train.py"
    lines = script.read_text().splitlines(keepends=True)
    before = [line for line in lines if not line.endswith("# added\n")]
    assert len(lines) - len(before) == 3
    assert "tidegate" not in "".join(before)
    assert 35 <= len(before) <= 45  # forty, as the text says
    original = tmp_path / "original.py"
    original.write_text("".join(before))
    plain, output = losses_of(plain_torch(original)), torchrun(script)
    assert len(plain) == len(losses_of(output)) == 5
    assert plain[-1] < 0.2 and losses_of(output)[-1] < 0.2
    assert steps_of(output) == [5 * STEPS] * RANKS


@pytest.mark.parametrize(
    "framework, example",
    [("accelerate", "accelerate_train.py"), ("transformers", "hf_trainer.py")],
)
def test_one_process_trains_as_if_tidegate_were_not_there(framework, example, tmp_path):
    need(framework)
    options = ("--folder", tmp_path, "--epochs", 1)
    assert steps_of(torchrun(ROOT / "examples" / example, *options, ranks=1)) == [0]


def test_one_process_of_lightning_trains_as_if_tidegate_were_not_there(tmp_path, capsys):
    need("lightning")
    import lightning
    import torch

    from tidegate.trainers.lightning import TidegateCallback

    class Job(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, index):
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = TidegateCallback()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        callbacks=[callback],
        enable_checkpointing=False,
        **quiet,
    )
    trainer.fit(Job(), torch.utils.data.DataLoader(torch.randn(8, 2)))
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    assert callback.handle.stats()["steps"] == 0
    assert "one process" in capsys.readouterr().err


class Other:
    """What another strategy would wrap a model in."""


def test_other_wrappers_and_several_optimizers_are_refused():
    need("lightning")
    from tidegate.trainers.attached import attach_wrapped
    from tidegate.trainers.lightning import _only

    with pytest.raises(tidegate.Error, match=r"trains this model as Other; .* take DDP") as caught:
        attach_wrapped(Other(), None, {}, framework="X", ranks=2, advice="take DDP")
    assert caught.value.kind == "unsupported"
    with pytest.raises(tidegate.Error, match="2 optimizers") as caught:
        _only([1, 2])
    assert caught.value.kind == "unsupported"


def test_importing_tidegate_imports_no_framework():
    program = (
        "import sys, tidegate, tidegate.trainers; "
        "print({'lightning', 'accelerate', 'transformers'} & set(sys.modules))"
    )
    assert run("-c", program) == "set()\n"
