# SPDX-License-Identifier: Apache-2.0
"""`tidegate demo`: trains one model three ways in real processes on an emulated link, and compares.

This is the parent. It checks what it was given, starts one demo_worker per rank, shows what rank 0
tells, and sees to it that no process outlives it, whatever happens.
"""

import contextlib
import json
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from . import _core, fashion_mnist
from .attach import _resolve_policy
from .cli import check_writable, write_json
from .demo_worker import RUNS
from .errors import Error
from .policies import Policy

MOST_RANKS = 16
DEFAULT_METHOD, DEFAULT_RATIO, DEFAULT_RANK = "topk", 0.01, 2
TOLERANCE = 0.005  # of accuracy; a run that ends further below fp32 has lost
LINE_EVERY = 5.0  # seconds, where there is no terminal to draw on
AFTERMATH = 1.0  # seconds after a first failure in which the others may tell what they know
PATIENCE = 2.0  # seconds in which a process may end by itself before it is killed
TAIL = 12  # lines of a failed process's standard error


def run(arguments: Namespace) -> int:
    settings = check(arguments)
    console = Console(stderr=True, highlight=False)
    display = make_display(console, settings["steps"], arguments.quiet)
    with interrupted_by_sigterm(), display, tempfile.TemporaryDirectory(prefix="tidegate-") as home:
        settings["folder"] = home
        with Workers(arguments.ranks, settings, home) as workers:
            results = follow(workers, display, link_changes(settings))
    summary = summarise(arguments, settings, results)
    if arguments.json:
        write_json(arguments.json, summary)
    if arguments.json != "-":
        show(summary)
    return 0


# --- what it was given ---


def check(arguments: Namespace) -> dict:
    """The settings of the workers. All mistakes are found here, before a process is started."""
    check_range("--ranks", arguments.ranks, 1, MOST_RANKS)
    check_range("--epochs", arguments.epochs, 1, 10_000)
    check_range("--seed", arguments.seed, 0, 2**31 - 1)
    images = fashion_mnist.count("train")
    check_range("--batch", arguments.batch, 1, images // arguments.ranks)
    steps_per_epoch = images // arguments.ranks // arguments.batch
    steps = steps_per_epoch * arguments.epochs
    if arguments.steps is not None:
        check_range("--steps", arguments.steps, 1, 10**9)
        steps = min(steps, arguments.steps)
    link, described = choose_link(arguments, steps)
    policy = choose_policy(arguments)
    check_writable("--trace", arguments.trace)
    if arguments.json not in (None, "-"):
        check_writable("--json", arguments.json)
    return {
        "link": link,
        "emulated_link": described,
        "policy": policy.name,
        "options": policy.options,
        "trace": arguments.trace,
        "seed": arguments.seed,
        "batch": arguments.batch,
        "steps": steps,
        "steps_per_epoch": steps_per_epoch,
    }


def check_range(option: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise Error("config", f"{option} {value}: must be between {low} and {high}")


def choose_link(arguments: Namespace, steps: int) -> tuple[str | list, str]:
    """As _core.LinkSchedule takes it and JSON carries it, and in words."""
    if arguments.link_schedule is None:
        _core.parse_link(arguments.link)
        return arguments.link, arguments.link
    schedule = _core.find_link_schedule(arguments.link_schedule, steps)
    return schedule.segments, schedule.describe()


def choose_policy(arguments: Namespace) -> Policy:
    policy, method = arguments.policy, arguments.method
    ratio, rank = arguments.ratio, arguments.rank
    if policy is None and (method, ratio, rank) == (None, None, None):
        policy = "auto"
    if policy in (None, "fixed"):
        policy, method = "fixed", method or DEFAULT_METHOD
        levels = {row["name"]: row["level"] for row in _core.methods()}
        if ratio is None and levels.get(method) == "ratio":
            ratio = DEFAULT_RATIO
        if rank is None and levels.get(method) == "rank":
            rank = DEFAULT_RANK
    chosen = _resolve_policy(policy, {"method": method, "ratio": ratio, "rank": rank})
    _core.Session(
        0, 1, chosen.name, chosen.options, own=chosen.adapters(1)[0]
    )  # raises what is wrong with the options
    return chosen


# --- the processes ---


@contextlib.contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Makes `kill` the same as Ctrl-C, so that the processes and the folder are tidied up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Workers:
    """One process per rank, for the time of a `with`."""

    def __init__(self, ranks: int, settings: dict, home: str):
        self._ranks = ranks
        self._settings = json.dumps(settings)
        self._home = Path(home)
        self._processes: list[subprocess.Popen] = []
        self._ended: list[int] = []  # ranks, in the order in which they ended
        self._errors: dict[int, dict] = {}  # by rank, in the order in which they came
        self._where = "at the start"

    def __enter__(self) -> "Workers":
        try:
            for rank in range(self._ranks):
                self._processes.append(self._start(rank))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()

    def _start(self, rank: int) -> subprocess.Popen:
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(self._ranks),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        environment.pop("TIDEGATE_DISABLE", None)  # would turn the demonstration off
        with self._stderr(rank).open("wb") as stderr:
            return subprocess.Popen(
                # -P: no file of the user's folder may stand in for a module.
                [sys.executable, "-P", "-m", "tidegate.demo_worker", self._settings],
                env=environment,
                stdin=subprocess.PIPE,  # closes when this process ends, which ends the worker
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C is for the parent alone
            )

    def messages(self) -> Iterator[dict]:
        """What the workers tell, until all have ended well. Raises when one has not."""
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self._processes):
                assert process.stdout is not None, "a pipe"
                selector.register(process.stdout, selectors.EVENT_READ, (rank, bytearray()))
            deadline = math.inf
            while selector.get_map() and time.monotonic() < deadline:
                for key, _ in selector.select(max(0, min(0.5, deadline - time.monotonic()))):
                    rank, pending = key.data
                    data = os.read(key.fd, 65536)
                    if not data:
                        selector.unregister(key.fileobj)
                        self._processes[rank].wait()
                        self._ended.append(rank)
                    pending += data
                    yield from self._take_lines(rank, pending)
                if self._failed() and deadline == math.inf:
                    deadline = time.monotonic() + AFTERMATH
        if self._failed():
            raise self._failure()

    def _take_lines(self, rank: int, pending: bytearray) -> Iterator[dict]:
        while (end := pending.find(b"\n")) >= 0:
            line = bytes(pending[:end])
            del pending[: end + 1]
            try:
                message = json.loads(line)
                kind = message["kind"]
            except (ValueError, KeyError, TypeError):
                continue  # not ours: a library that prints
            if kind == "error":
                self._errors.setdefault(rank, message)
            else:
                self._where = f"in step {message.get('step', 0)} of {message['name']}"
                yield message

    def _failed(self) -> bool:
        return bool(self._errors) or any(process.returncode for process in self._processes)

    def _failure(self) -> Error:
        """Names the rank that failed first: one that went without a word, else one whose error is
        of its own, not about a peer or a time-out."""
        silent = [
            rank
            for rank in self._ended
            if self._processes[rank].returncode and rank not in self._errors
        ]
        if silent:
            return self._with_tail(silent[0], Error("peer", self._death(silent[0])))
        own = [r for r, e in self._errors.items() if e["error"] not in ("peer", "timeout")]
        rank = (own or list(self._errors))[0]
        kind = "config" if self._errors[rank]["error"] == "config" else "peer"
        text = f"rank {rank} failed {self._where}: {self._errors[rank]['text']}"
        return self._with_tail(rank, Error(kind, text))

    def _death(self, rank: int) -> str:
        code = self._processes[rank].returncode
        if code > 0:
            return f"rank {rank} ended {self._where} with exit code {code}"
        text = f"rank {rank} was killed {self._where} by {signal.Signals(-code).name}"
        return text + "; if memory ran out, try fewer --ranks" if code == -signal.SIGKILL else text

    def _with_tail(self, rank: int, error: Error) -> Error:
        for line in self._stderr(rank).read_text(errors="replace").splitlines()[-TAIL:]:
            error.add_note(f"  rank {rank} | {line}\n")
        return error

    def _stderr(self, rank: int) -> Path:
        return self._home / f"stderr-{rank}"

    def _stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + PATIENCE
        for process in self._processes:
            try:
                process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def follow(workers: Workers, display: "Silence", changes: list[tuple[int, str]]) -> dict[str, dict]:
    """The result of every run, by name."""
    results: dict[str, dict] = {}
    coming: deque[tuple[int, str]] = deque()
    for message in workers.messages():
        if message["kind"] == "run":
            display.begin(message["name"])
            coming = deque(changes)
            continue
        while coming and coming[0][0] <= message.get("step", math.inf):
            display.note(f"{message['name']}: {coming.popleft()[1]}")
        if message["kind"] == "step":
            display.advance(message)
        elif message["kind"] == "result":
            results[message["name"]] = message
            display.end(message)
    return results


def link_changes(settings: dict) -> list[tuple[int, str]]:
    """From which steps of a run on the link is another, and what to say then."""
    schedule = _core.LinkSchedule(settings["link"])
    return [
        (first_step, f"from step {first_step} on the link is {schedule.describe_at(first_step)}")
        for first_step, *_ in schedule.segments
        if schedule.changes and first_step < settings["steps"]
    ]


# --- progress, on standard error ---


def figures(message: dict) -> dict[str, Any]:
    """What is shown of a run under way; "doing" = the methods and levels in use, if it chooses."""
    shown = {
        "loss": f"loss {number(message['loss'], '.3f')}",
        "pace": f"{1e3 * message['seconds'] / message['step']:.0f} ms/step emulated",
        "sent": f"{message['bytes_sent'] / 1e6:.1f} MB sent",
    }
    if message["fp32_bytes"]:  # not of a single rank
        saved = 1 - message["bytes_sent"] / message["fp32_bytes"]
        shown["sent"] += f", {100 * saved:.0f} % saved"
    if message.get("choices"):
        shown["doing"] = "; ".join(message["choices"])
    return shown


def number(value: float | None, form: str) -> str:
    return "not finite" if value is None else format(value, form)


def make_display(console: Console, steps: int, quiet: bool) -> "Silence":
    if quiet:
        return Silence()
    return Bars(console, steps) if console.is_interactive else Lines(console, steps)


class Silence:
    def __enter__(self) -> "Silence":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def begin(self, name: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def advance(self, message: dict) -> None:
        pass

    def end(self, message: dict) -> None:
        pass


class Bars(Silence):
    """One bar per run."""

    def __init__(self, console: Console, steps: int):
        self._steps = steps
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=14),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[pace]}  {task.fields[sent]}  {task.fields[loss]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[doing]}", table_column=Column(no_wrap=True)),
            console=console,
        )
        for name in RUNS:
            self._tasks[name] = self._progress.add_task(
                name, start=False, total=steps, loss="", pace="", sent="", doing=""
            )

    def __enter__(self) -> "Bars":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def begin(self, name: str) -> None:
        self._progress.start_task(self._tasks[name])

    def note(self, text: str) -> None:
        self._progress.console.print(text, markup=False)  # above the bars

    def advance(self, message: dict) -> None:
        task = self._tasks[message["name"]]
        self._progress.update(task, completed=message["step"], **figures(message))

    def end(self, message: dict) -> None:
        self.advance({**message, "step": self._steps})


class Lines(Silence):
    """A line every few seconds, for files and logs."""

    def __init__(self, console: Console, steps: int):
        self._console = console
        self._steps = steps
        self._shown_at = 0.0

    def begin(self, name: str) -> None:
        self._shown_at = time.monotonic()
        self._print(f"{name}: {self._steps} steps")

    def note(self, text: str) -> None:
        self._print(text)

    def advance(self, message: dict) -> None:
        if time.monotonic() - self._shown_at > LINE_EVERY:
            self._shown_at = time.monotonic()
            self._line(message)

    def end(self, message: dict) -> None:
        self._line({**message, "step": self._steps})

    def _line(self, message: dict) -> None:
        shown = ", ".join(figures(message).values())
        self._print(f"{message['name']}: step {message['step']}/{self._steps}, {shown}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


# --- the result ---


def summarise(arguments: Namespace, settings: dict, results: dict[str, dict]) -> dict:
    runs = [
        {
            "name": name,
            "accuracy": results[name]["accuracy"],
            "seconds": results[name]["seconds"],
            "step_ms": 1e3 * results[name]["seconds"] / settings["steps"],
            "bytes_sent": results[name]["bytes_sent"],
            "loss": results[name]["loss"],
        }
        for name in RUNS
    ]
    fp32, bf16, ours = (row["seconds"] for row in runs)
    return {
        "v": 1,
        "emulated_link": settings["emulated_link"],
        "ranks": arguments.ranks,
        "steps": settings["steps"],
        "runs": runs,
        "speedup_vs_fp32": fp32 / ours,
        "speedup_vs_bf16": bf16 / ours,
        "trace": arguments.trace,
    }


def show(summary: dict) -> None:
    fp32, bf16, _ = summary["runs"]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("run")
    for heading in ("accuracy", "seconds", "ms/step", "MB sent", "vs fp32", "vs bf16"):
        table.add_column(heading, justify="right")
    for row in summary["runs"]:
        table.add_row(
            row["name"],
            f"{100 * row['accuracy']:.2f} %",
            f"{row['seconds']:.1f}",
            f"{row['step_ms']:.0f}",
            f"{row['bytes_sent'] / 1e6:.1f}",
            f"{fp32['seconds'] / row['seconds']:.2f}x",
            f"{bf16['seconds'] / row['seconds']:.2f}x",
        )
    console = Console(markup=False, highlight=False)
    console.print(table)
    for line in remarks(summary):
        console.print(line, soft_wrap=True)


def remarks(summary: dict) -> list[str]:
    """What a reader of the table must know. A defeat is said as plainly as a victory."""
    ranks = summary["ranks"]
    lines = [
        f"Times are on an EMULATED link of {summary['emulated_link']}; rates are per rank and "
        f"direction. {ranks} {'processes' if ranks > 1 else 'process'} on this machine, every "
        "exchange held back.",
        f"MB sent: per rank, in {summary['steps']} steps. vs: how many times as fast.",
    ]
    return [*lines, *defeats(summary), f"What Tidegate did, step by step: {summary['trace']}"]


def defeats(summary: dict) -> list[str]:
    fp32, bf16, ours = summary["runs"]
    lines = []
    for rival in (fp32, bf16):
        if ours["seconds"] > rival["seconds"]:
            lines.append(
                f"Tidegate LOST time against {rival['name']}: {ours['seconds']:.1f} s instead of "
                f"{rival['seconds']:.1f} s. On this link this method does not pay."
            )
    missing = fp32["accuracy"] - ours["accuracy"]
    if missing > TOLERANCE:
        lines.append(
            f"Tidegate LOST accuracy: {100 * missing:.1f} points below {fp32['name']} after the "
            "same number of steps. A higher --ratio or more --epochs loses less."
        )
    return lines
