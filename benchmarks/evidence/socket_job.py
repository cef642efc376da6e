# SPDX-License-Identifier: Apache-2.0
"""One rank of a job on real sockets: trains a CNN of 5.3 million parameters on Fashion-MNIST by
DDP, with gradients averaged in one of many ways, and tells what steps take and how well it learns.

    sudo tools/netlab run --ranks 4 --link 100mbit --quiet -- .venv/bin/python \\
        -m benchmarks.evidence.socket_job '{"way": {"kind": "fp16"}, "timed": 30}'

The argument is a JSON object, see Settings; rank 0 writes the result to `out`, or to standard
output. Only steps are on the clock: evaluations, start-up and waiting for a link to change are not.
"""

import json
import os
import resource
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

import tidegate
from tidegate import fashion_mnist
from tidegate.demo_worker import Data, learning_rate_factor

BATCH = 32  # images per rank
LEARNING_RATE, MOMENTUM = 0.05, 0.9
WARM_UP = 5  # steps: DDP cuts its buckets anew after the first, PowerSGD's hook begins at the third
LEAST_TIMED = 3  # steps
COMPUTE_STEPS = 10  # without any exchange
EVALUATED_AT_ONCE = 100  # images; what lies between two layers then fits into the cache
# torch's PowerSGD hook needs one bucket: with several, its callbacks issue collectives in the order
# in which buckets complete, which differs between ranks.
ONE_BUCKET_MB = 1000
TIMEOUT = 280.0  # seconds of a collective; fp32 takes 13 s for a step at 20 Mbit/s


@dataclass(frozen=True)
class Settings:
    """What a job is told. `way` is {"kind": "ddp" | "fp16" | "powersgd", "rank": N} or
    {"kind": "tidegate", and what attach takes}."""

    way: dict
    seed: int = 0
    steps: int = 400  # of the schedule of learning rates, and of a run that is not `timed`
    timed: int = 0  # steps after the warm-up, instead of a whole run
    within: float = 0.0  # seconds after which timed steps end; 0 = never before the last
    evaluate_every: int = 25  # steps, until the target is reached; then four times as many
    evaluate_from: int = 150  # steps; before, nobody is near the target
    target: float = 0.86
    changes: list = field(default_factory=list)  # [step, link]: made by whoever started the job
    folder: str = ""  # for asking for those
    trace: str = ""
    out: str = ""
    seconds: float = 290.0  # after which a rank gives up, whatever it waits for


def make_model(seed: int) -> nn.Module:
    """5.3 million parameters, most of them in one matrix, as in a network with a large head."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 64, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 1664),
        nn.ReLU(),
        nn.Linear(1664, fashion_mnist.CLASSES),
    )


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)


def make_ddp(way: dict, seed: int) -> DistributedDataParallel:
    cut = {"bucket_cap_mb": ONE_BUCKET_MB} if way["kind"] == "powersgd" else {}
    return DistributedDataParallel(make_model(seed), gradient_as_bucket_view=True, **cut)


def average_by(way: dict, model, optimizer, settings: Settings) -> tidegate.Handle | None:
    """Registers what averages the gradients."""
    if way["kind"] == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif way["kind"] == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=way["rank"], start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif way["kind"] == "tidegate":
        given = {key: value for key, value in way.items() if key != "kind"}
        return tidegate.attach(
            model, optimizer, timeout=TIMEOUT, trace=settings.trace or None, **given
        )
    return None


def one_step(model, optimizer, images, labels) -> float:
    optimizer.zero_grad()
    loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def computing(data: Data, seed: int) -> dict[str, float]:
    """A step without any exchange, while all ranks do the same. Also warms the process up."""
    module = make_model(seed)
    optimizer = make_optimizer(module)
    meter = Meter()
    for step in range(WARM_UP + COMPUTE_STEPS):
        if step == WARM_UP:
            meter = Meter()
        meter.start()
        one_step(module, optimizer, *data.batch(step))
        meter.stop()
    return {
        "compute_ms": 1e3 * statistics.median(meter.seconds),
        "compute_cpu_ms": 1e3 * meter.cpu / COMPUTE_STEPS,
    }


@torch.no_grad()
def accuracy(model: nn.Module, data: Data) -> float:
    """On all test images; each rank takes its share."""
    right_and_all = torch.zeros(2)
    for images, labels in zip(*(part.split(EVALUATED_AT_ONCE) for part in data.test), strict=True):
        right_and_all[0] += (model(images).argmax(1) == labels).sum()
        right_and_all[1] += len(labels)
    dist.all_reduce(right_and_all)
    return (right_and_all[0] / right_and_all[1]).item()


class Meter:
    """What this process has used while steps were on the clock."""

    def __init__(self):
        self.seconds: list[float] = []
        self.cpu = self.wire = 0.0
        self._began: tuple[float, float, int] | None = None

    def start(self) -> None:
        self._began = (time.monotonic(), cpu_seconds(), bytes_on_the_wire())

    def stop(self) -> None:
        ended = (time.monotonic(), cpu_seconds(), bytes_on_the_wire())
        seconds, cpu, wire = (b - a for a, b in zip(self._began, ended, strict=True))
        self.seconds.append(seconds)
        self.cpu += cpu
        self.wire += wire


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def bytes_on_the_wire() -> int:
    """That this rank's interface has sent, with all headers; on loopback all ranks share it."""
    name = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        if line.strip().startswith(f"{name}:"):
            return int(line.split(":")[1].split()[8])
    return 0


def memory(field_name: str) -> int:
    """Bytes, from the kernel: VmRSS as it is, VmHWM at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field_name}:"):
            return 1024 * int(line.split()[1])
    return 0


def forget_peak() -> None:
    """So that VmHWM is that of what follows, and not of reading the data."""
    Path("/proc/self/clear_refs").write_text("5")


def change_link(settings: Settings, step: int) -> None:
    """Asks for the change and waits for it, so that it comes between the same two steps in every
    run. By files: the ranks' networks lead nowhere else."""
    if dist.get_rank() == 0:
        Path(settings.folder, f"ask-{step}").touch()
    while not Path(settings.folder, f"done-{step}").exists():
        time.sleep(0.01)
    dist.barrier()


def is_due(done: int, curve: list, settings: Settings) -> bool:
    """An evaluation, after that many steps."""
    if settings.timed or done < settings.evaluate_from:
        return False
    reached = any(accuracy >= settings.target for _, _, accuracy in curve)
    every = 4 * settings.evaluate_every if reached else settings.evaluate_every
    return done % every == 0 or done == settings.steps


def is_enough(meter: Meter, settings: Settings) -> bool:
    """Timed steps that take very long may be fewer; rank 0's clock decides for all."""
    if not settings.timed or not settings.within or len(meter.seconds) < WARM_UP + LEAST_TIMED:
        return False
    enough = torch.tensor(float(sum(meter.seconds[WARM_UP:]) > settings.within))
    dist.broadcast(enough, 0)
    return bool(enough.item())


def train(settings: Settings, data: Data, model, optimizer, handle) -> dict:
    """A whole run, with evaluations, or `timed` steps."""
    schedule = LambdaLR(optimizer, lambda step: learning_rate_factor(step, settings.steps))
    meter, curve, changes = Meter(), [], dict(settings.changes)
    steps = WARM_UP + settings.timed if settings.timed else settings.steps
    dist.barrier()
    for step in range(steps):
        if step in changes:
            change_link(settings, step)
        images, labels = data.batch(step)
        meter.start()
        loss = one_step(model, optimizer, images, labels)
        meter.stop()
        schedule.step()
        if handle is not None:
            handle.log(loss=loss)
        if is_enough(meter, settings):
            break
        if is_due(step + 1, curve, settings):
            curve.append([step + 1, sum(meter.seconds), accuracy(model.module, data)])
            dist.barrier()
    count = len(meter.seconds)
    return {
        "step_ms": [round(1e3 * seconds, 3) for seconds in meter.seconds],
        "curve": curve,  # [steps, seconds on the clock, accuracy]
        "cpu_ms": 1e3 * meter.cpu / count,
        "wire_bytes": meter.wire / count,
    }


def join_the_others(seed: int, steps: int) -> Data:
    """With this rank's share of the images."""
    torch.set_num_threads(1)  # the ranks share the machine's cores
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    steps_per_epoch = fashion_mnist.count("train") // ranks // BATCH
    order = {"seed": seed, "batch": BATCH, "steps": steps, "steps_per_epoch": steps_per_epoch}
    return Data(rank, ranks, order)


def work(settings: Settings) -> None:
    data = join_the_others(settings.seed, settings.steps)
    compute = computing(data, settings.seed)
    dist.barrier()
    forget_peak()
    before = memory("VmRSS")
    model = make_ddp(settings.way, settings.seed)
    optimizer = make_optimizer(model)
    began = time.monotonic()
    handle = average_by(settings.way, model, optimizer, settings)
    dist.barrier()
    start_up = time.monotonic() - began
    figures = train(settings, data, model, optimizer, handle)
    figures |= {**compute, "peak_bytes": memory("VmHWM") - before}
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, figures)
    stats = handle.stats() if handle is not None else None
    if handle is not None:
        handle.detach()
    if dist.get_rank() == 0:
        result = {
            **figures,
            **{
                name: statistics.mean(one[name] for one in gathered)
                for name in ("cpu_ms", "wire_bytes", "peak_bytes", *compute)
            },
            "parameters": sum(p.numel() for p in model.parameters()),
            "start_up_seconds": start_up,
            "stats": stats,
        }
        tell(result, settings.out)
    dist.barrier()
    dist.destroy_process_group()


def tell(result: dict, out: str) -> None:
    if out:
        Path(out).write_text(json.dumps(result), encoding="utf-8")
    else:
        print(json.dumps(result))


def give_up_after(seconds: float) -> None:
    """Whatever this process waits for then: a job that hangs must not hold up the others."""

    def end():
        print(f"gave up after {seconds:.0f} seconds", file=sys.stderr, flush=True)
        os._exit(3)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    give_up_after(settings.seconds)
    work(settings)


if __name__ == "__main__":
    main()
