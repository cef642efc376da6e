# SPDX-License-Identifier: Apache-2.0
"""What the code in README and docs leaves out: small stand-ins for the reader's model, data and
loop, by the names that the text uses. And a few steps of training afterwards: a line that attaches
something has to train, not only to run."""

import functools
import importlib.util
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import tidegate

STEPS = 3


# --- for every document ---


def common(rank: int) -> dict:
    """Fresh for every piece of code."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 4))
    model = DDP(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = [torch.randn(8, 32, generator=generator(rank, i)) for i in range(STEPS)]
    return {
        "torch": torch,
        "dist": dist,
        "DDP": DDP,
        "tidegate": tidegate,
        "rank": rank,
        "module": module,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10),
        "loader": loader,
        "loss_fn": loss_fn,
        "loss": torch.ones(()),
        "epochs": 2,
        "step": 7,
        "steps": 2 * STEPS,
    }


def generator(*numbers: int) -> torch.Generator:
    return torch.Generator().manual_seed(sum(n * 1000**i for i, n in enumerate(numbers)))


def loss_fn(model, batch) -> torch.Tensor:
    return model(batch).square().mean()


def train(names: dict) -> None:
    """With whatever is attached to the model now."""
    for batch in names["loader"]:
        names["optimizer"].zero_grad()
        loss_fn(names["model"], batch).backward()
        names["optimizer"].step()


def handle_of(model: DDP):
    registered = getattr(model, "_tidegate_registered", None)
    return registered and registered.handle


# --- for single sections ---


def with_handle(names: dict) -> None:
    names["handle"] = tidegate.attach(
        names["model"], names["optimizer"], policy="fixed", method="topk", ratio=0.1
    )
    train(names)


def with_files(names: dict) -> None:
    with_handle(names)
    names["path"] = f"step-{names['step']}-rank-{names['rank']}.pt"
    names["folder"] = "distributed"


def with_task(names: dict) -> None:
    module = names["module"]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def batches(worker, workers, epoch):
        return [torch.randn(4, 32, generator=generator(worker, epoch, i)) for i in range(5)]

    def evaluate(model):
        return {"loss": float(loss_fn(model, torch.ones(2, 32)))}

    task = tidegate.Task(module, optimizer, batches, loss_fn, evaluate)
    given = {"batches": batches, "evaluate": evaluate, "optimizer": optimizer, "model": module}
    names |= {"task": task, "attached_model": names["model"], **given, "loss": loss_fn}


def with_task_and_model(names: dict) -> None:
    model, optimizer = names["model"], names["optimizer"]
    with_task(names)
    names |= {"model": model, "optimizer": optimizer}


def with_trace(names: dict) -> None:
    """run.jsonl, of a job like the one that follows."""
    recorded = common(names["rank"])
    handle = tidegate.attach(
        recorded["model"],
        recorded["optimizer"],
        policy="schedule:levels=0 bf16;2 topk 0.1",
        trace="run.jsonl",
    )
    train(recorded)
    handle.detach()


def with_epochs(names: dict) -> None:
    names["E"] = 100


def with_ddp(names: dict) -> None:
    """Wrapped, but attached by nobody yet."""
    names["ddp"] = names["model"]


BEFORE = {
    ("docs/TRAINERS.md", "Anything else"): with_ddp,
    ("docs/GUIDE.md", "Before you have the cluster"): with_task,
    ("docs/CHECKPOINTS.md", "Three lines"): with_handle,
    ("docs/CHECKPOINTS.md", "Your own files"): with_files,
    ("docs/POLICIES.md", "fixed and schedule"): with_epochs,
    ("docs/POLICIES.md", "replay"): with_trace,
    ("docs/POLICIES.md", "Write your own"): with_task_and_model,
}


def use_policy(names: dict) -> None:
    policy = names["biases_stay_dense"]
    tidegate.attach(names["model"], names["optimizer"], policy=policy)


def use_schedules(names: dict) -> None:
    policy = names["weak_in_critical_regimes"]
    tidegate.attach(names["model"], names["optimizer"], policy=policy)


# By a name that the code defines and nobody uses in it.
AFTER = {"biases_stay_dense": use_policy, "weak_in_critical_regimes": use_schedules}


def run(block, rank: int) -> None:
    """One piece of code, with what it needs before and what shows afterwards that it works."""
    names = common(rank)
    BEFORE.get((block.document, block.section), lambda names: None)(names)
    exec(compile(block.placed_text(), block.document, "exec"), names)
    for name, use in AFTER.items():
        if name in names:
            use(names)
    model = names["model"]
    if isinstance(model, DDP) and (handle := handle_of(model)):
        train(names)
        assert handle.stats()["steps"] >= STEPS
        handle.detach()


# --- with frameworks, each in processes of its own ---


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 2))


def example(name: str):
    """One of our examples, as a module: it has the framework's own kind of model and data."""
    path = Path(__file__).parents[2] / "examples" / name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_lightning(execute) -> dict:
    import lightning
    from torch.utils.data import DataLoader

    job = example("lightning_train.py")
    names = execute({"lightning": lightning})
    names["trainer"].fit_loop.epoch_loop.max_steps = STEPS
    names["trainer"].fit(job.Classifier(), DataLoader(job.data(), 32))
    return names["tidegate"].handle.stats()


def run_accelerate(execute) -> dict:
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerator = Accelerator(cpu=True)
    module = classifier()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    loader = DataLoader(example("accelerate_train.py").data(), batch_size=32)
    given = {"model": module, "optimizer": optimizer, "loader": loader}
    names = execute({"accelerator": accelerator, **given})
    for inputs, targets in names["loader"]:
        names["optimizer"].zero_grad()
        accelerator.backward(nn.functional.cross_entropy(names["model"](inputs), targets))
        names["optimizer"].step()
    stats = names["handle"].stats()
    accelerator.end_training()
    return stats


def run_transformers(execute) -> dict:
    from transformers import Trainer, TrainingArguments

    job = example("hf_trainer.py")
    arguments = functools.partial(
        TrainingArguments,
        output_dir="checkpoints",
        use_cpu=True,
        per_device_train_batch_size=256,
        save_strategy="epoch",
        ddp_find_unused_parameters=False,
        report_to="none",
    )
    data = job.data()
    # The text goes on from a checkpoint.
    Trainer(model=job.Classifier(), args=arguments(num_train_epochs=1), train_dataset=data).train()
    given = {"model": job.Classifier(), "arguments": arguments(num_train_epochs=2), "data": data}
    return execute({"Trainer": Trainer, **given})["tidegate"].handle.stats()


def run_fsdp(execute) -> dict:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = classifier()
    given = {"init_device_mesh": init_device_mesh, "fully_shard": fully_shard}
    names = execute({**given, "torch": torch, "model": model})
    for index in range(STEPS):
        model(torch.randn(8, 32, generator=generator(dist.get_rank(), index))).sum().backward()
    stats = names["handle"].stats()
    names["handle"].detach()
    dist.destroy_process_group()
    return stats


FRAMEWORKS = {
    "lightning": run_lightning,
    "accelerate": run_accelerate,
    "transformers": run_transformers,
    "fsdp": run_fsdp,
}


def main(framework: str, path: str, document: str) -> None:
    """Under torchrun: the code in a file, as it stands in a document."""

    def execute(names: dict) -> dict:
        exec(compile(Path(path).read_text(), document, "exec"), names)
        return names

    print(FRAMEWORKS[framework](execute))


if __name__ == "__main__":
    main(*sys.argv[1:])
