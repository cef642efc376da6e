# SPDX-License-Identifier: Apache-2.0
"""Breaks jobs of real processes in every way we know, and prints what each rank said, after how
many seconds, how it ended, and what was lost.

    make faults
    .venv/bin/python tools/faults.py --only kill,stop

Exits with 1 if something does not hold that must: every rank that is not broken itself reports a
fault within the time-out and a second, nothing is left behind, a slow rank is waited for, and a job
that is started again ends with the very bits of one that was never broken.
"""

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import faults_leftovers
from faults_job import BREAK_AT, SAVE_EVERY, STEPS, Plan, run
from netlab_lab import Lab, tool
from netlab_link import NetlabError, parse_link

RANKS = 3
VICTIM = 2
TIMEOUT = 5.0
GRACE = 1.0  # seconds after the deadline in which everybody has spoken
LIMIT = 90.0  # seconds for a job to end in any way

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch._dynamo", "faults_job"])


@dataclass
class Rank:
    said: dict
    exit_code: int | None  # None = had to be killed
    seconds: float | None  # from the fault to what it said

    @property
    def line(self) -> str:
        if not self.said:
            return "(nothing: it is the broken one)"
        if self.said["kind"]:
            return f"{self.said['kind']}: {self.said['text']}"
        told = [*self.said.get("failed_saves", []), *self.said["warnings"]]
        return "; ".join(["finished", *told])


@dataclass
class Fault:
    name: str
    what: str
    victim: int = VICTIM
    spoken: str = ""  # what every healthy rank must say, as a pattern
    survives: bool = False  # the job goes on to its end
    resumes: bool = True  # a job that is started again ends as if nothing had happened
    victim_exits: tuple[int | None, ...] = (-9,)
    needs_root: bool = False


NAMES_VICTIM = r"rank 2 \(step|rank 2 has (left|failed)"
FAULTS = [
    Fault("kill", "kill -9", spoken=NAMES_VICTIM),
    Fault("kill 0", "kill -9 of rank 0, which keeps the store", 0, r"store does not answer|rank 0"),
    Fault("stop", "SIGSTOP", spoken=NAMES_VICTIM, victim_exits=(None,)),
    Fault(
        "stop 0",
        "SIGSTOP of rank 0, which keeps the store",
        0,
        r"store does not answer",
        victim_exits=(None,),
    ),
    Fault("raise", "an exception in the script", spoken=NAMES_VICTIM, victim_exits=(4,)),
    Fault(
        "caught",
        "an error in a policy; the script catches it and lives on",
        spoken="a bug in the user's policy",
        victim_exits=(3, 4),
    ),
    Fault("interrupt", "Ctrl-C on all ranks", -1, "KeyboardInterrupt|has left|Connection"),
    Fault(
        "cut",
        "the link of a rank is cut",
        spoken=r"no answer within .* rank 2 \(step",
        victim_exits=(3,),
        needs_root=True,
    ),
    Fault("slow", "a rank 10 times as slow", survives=True, victim_exits=(0,)),
    Fault(
        "corrupt", "a bit of a received message is flipped", spoken="checksum", victim_exits=(3,)
    ),
    Fault(
        "other settings",
        "a rank with other settings",
        spoken="rank 2 has other settings than rank 0: .*topk.* instead of .*int8",
        resumes=False,
        victim_exits=(3,),
    ),
    Fault(
        "absent",
        "a rank that never attaches",
        spoken="without rank 2|could not form a group",
        resumes=False,
        victim_exits=(0,),
    ),
    Fault(
        "memory",
        "a rank's buffer cannot be allocated",
        spoken="rank 2|bad_alloc",
        victim_exits=(4,),
    ),
    Fault(
        "full disk",
        "a full disk while saving",
        -1,
        "No space left on device",
        survives=True,
        needs_root=True,
    ),
    Fault("killed while saving", "kill -9 while saving", spoken="could not tell each other"),
    Fault(
        "half-written",
        "a checkpoint with half a file",
        -1,
        "has \\d+ bytes instead of",
        resumes=False,
    ),
]


@dataclass
class Verdict:
    fault: Fault
    ranks: list[Rank] = field(default_factory=list)
    skipped: str = ""
    resumed: str = ""
    broken_rules: list[str] = field(default_factory=list)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@functools.cache
def start_server() -> None:
    """What forks the ranks stays until the end, and is not theirs."""
    process = _context.Process(target=int)
    process.start()
    process.join()


def run_job(plan: Plan, meanwhile: Callable[[list], None] = lambda processes: None) -> list[Rank]:
    processes = [_context.Process(target=run, args=(rank, RANKS, plan)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    began = time.monotonic()
    healthy = [process for rank, process in enumerate(processes) if rank != plan.victim]
    while any(process.is_alive() for process in healthy) and time.monotonic() - began < LIMIT:
        meanwhile(processes)
        time.sleep(0.05)
    if plan.victim >= 0 and plan.fault not in ("stop", "none"):
        processes[plan.victim].join(LIMIT)
    ranks = []
    notes = Path(plan.notes)
    fault_at = notes / "fault"
    since = float(fault_at.read_text()) if fault_at.exists() else None
    for rank, process in enumerate(processes):
        code = process.exitcode
        if code is None:
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        said = notes / f"rank-{rank}"
        words = json.loads(said.read_text()) if said.exists() else {}
        seconds = max(0.0, words["at"] - since) if since and words else None
        ranks.append(Rank(words, code, seconds))
    return ranks


@contextlib.contextmanager
def small_disk(folder: str) -> Iterator[None]:
    tool("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", folder)
    try:
        yield
    finally:
        tool("umount", folder)


@contextlib.contextmanager
def lab_of_our_own() -> Iterator[Lab]:
    lab = Lab(f"faults{os.getpid()}")
    lab.reserve()
    try:
        lab.build(RANKS, parse_link("1gbit"), None)
        yield lab
    finally:
        lab.remove()


def provoke(fault: Fault, plan: Plan) -> list[Rank]:
    """Runs the job that the fault breaks."""
    if fault.name == "cut":
        with lab_of_our_own() as lab:
            plan.spaces = tuple(lab.space(rank) for rank in range(RANKS))
            plan.address = "10.77.0.1"
            cut = Path(plan.notes, "cut")

            def cut_when_asked(_processes):
                if cut.exists():
                    cut.unlink()
                    tool("ip", "-n", lab.space("switch"), "link", "set", f"port{VICTIM}", "down")

            return run_job(plan, cut_when_asked)
    if fault.name == "interrupt":
        asked = Path(plan.notes, "interrupt")

        def interrupt_when_asked(processes):
            if asked.exists():
                asked.unlink()
                Path(plan.notes, "fault").write_text(repr(time.monotonic()))
                for process in processes:  # as a terminal does
                    os.kill(process.pid, signal.SIGINT)

        return run_job(plan, interrupt_when_asked)
    if fault.name == "full disk":
        with small_disk(plan.folder):
            ranks = run_job(plan)
            copy = subprocess.run(
                ["cp", "-a", f"{plan.folder}/.", f"{plan.notes}/kept"], check=False
            )
            copy.check_returncode()
        subprocess.run(["cp", "-a", f"{plan.notes}/kept/.", plan.folder], check=True)
        return ranks
    if fault.name == "half-written":
        plan.fault = "none"
        run_job(plan)
        for path in Path(plan.notes).iterdir():
            path.unlink()
        file = next(Path(plan.folder).glob("*rank-1-of-*"))
        os.truncate(file, file.stat().st_size // 2)
        Path(plan.notes, "fault").write_text(repr(time.monotonic()))
    return run_job(plan)


def judge(fault: Fault, verdict: Verdict) -> None:
    broken = verdict.broken_rules
    for rank, outcome in enumerate(verdict.ranks):
        victim = rank == fault.victim
        if victim:
            if outcome.exit_code not in fault.victim_exits:
                broken.append(f"rank {rank} ended with {outcome.exit_code}")
            continue
        if outcome.exit_code is None:
            broken.append(f"rank {rank} hangs")
            continue
        if fault.spoken and not re.search(fault.spoken, outcome.line, re.DOTALL):
            broken.append(f"rank {rank} does not say /{fault.spoken}/")
        if outcome.said.get("threads") and fault.name != "stop 0":  # then one waits for the store
            broken.append(f"rank {rank} leaves threads {outcome.said['threads']}")
        if fault.survives:
            if outcome.exit_code != 0:
                broken.append(f"rank {rank} did not survive")
        elif outcome.exit_code == 0 or outcome.seconds is None:
            broken.append(f"rank {rank} reports nothing")
        elif outcome.seconds > TIMEOUT + GRACE:
            broken.append(
                f"rank {rank} speaks {outcome.seconds - TIMEOUT:.1f} s after the deadline"
            )
    if fault.name == "slow" and not any("seen: rank 2" in r.line for r in verdict.ranks):
        broken.append("nobody reports the slow rank")


@functools.cache
def reference(large: bool) -> str:
    """What the job ends with when nothing goes wrong."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as notes:
        ranks = run_job(Plan("none", -1, 60.0, folder, notes, port=free_port(), large=large))
    digests = {outcome.said.get("digest") for outcome in ranks}
    if len(digests) != 1 or None in digests:
        sys.exit(f"the job does not even run without a fault: {[rank.line for rank in ranks]}")
    return digests.pop()


def try_fault(fault: Fault) -> Verdict:
    verdict = Verdict(fault)
    if fault.needs_root and os.geteuid():
        verdict.skipped = "needs root"
        return verdict
    start_server()
    before = faults_leftovers.look()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as notes:
        name = fault.name.removesuffix(" 0")
        large = fault.name == "memory"
        plan = Plan(name, fault.victim, TIMEOUT, folder, notes, port=free_port(), large=large)
        try:
            verdict.ranks = provoke(fault, plan)
        except NetlabError as error:
            verdict.skipped = str(error).splitlines()[0]
            return verdict
        judge(fault, verdict)
        if fault.resumes:
            with tempfile.TemporaryDirectory() as more_notes:
                again = Plan("none", -1, 60.0, folder, more_notes, port=free_port(), large=large)
                verdict.resumed = resume(again, verdict)
    left = faults_leftovers.since(before)
    if left:
        verdict.broken_rules.append(f"left behind: {left}")
    return verdict


def resume(plan: Plan, verdict: Verdict) -> str:
    ranks = run_job(plan)
    if any(outcome.said.get("digest") != reference(plan.large) for outcome in ranks):
        words = [outcome.said.get("text", "") for outcome in ranks]
        verdict.broken_rules.append(f"started again, it ends elsewhere: {words}")
        return "not equal"
    return f"went on from step {ranks[0].said['resumed']}, ended with equal bits"


def print_verdict(verdict: Verdict) -> None:
    fault = verdict.fault
    print(f"\n{fault.what}")
    if verdict.skipped:
        print(f"  not run: {verdict.skipped}")
        return
    for rank, outcome in enumerate(verdict.ranks):
        seconds = f"{outcome.seconds:6.2f} s" if outcome.seconds is not None else "       -"
        code = "killed by us" if outcome.exit_code is None else f"exit {outcome.exit_code}"
        print(f"  rank {rank} {seconds}  {code:12}  {outcome.line}")
    if verdict.resumed:
        print(f"  started again: {verdict.resumed}")
    for rule in verdict.broken_rules:
        print(f"  MUST NOT BE: {rule}")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", help="names of faults, with commas between them")
    parser.add_argument("--list", action="store_true", help="the names of all faults")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{fault.name:20} {fault.what}" for fault in FAULTS))
        return 0
    names = options.only.split(",") if options.only else [fault.name for fault in FAULTS]
    unknown = set(names) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; see --list")
    print(
        f"{RANKS} ranks, time-out {TIMEOUT:g} s, {STEPS} steps, saved every {SAVE_EVERY}, broken "
        f"in step {BREAK_AT}; seconds count from the fault"
    )
    faults_leftovers.mark_descendants()
    verdicts = []
    for fault in FAULTS:
        if fault.name in names:
            verdicts.append(try_fault(fault))
            print_verdict(verdicts[-1])
    bad = [verdict.fault.name for verdict in verdicts if verdict.broken_rules]
    skipped = [verdict.fault.name for verdict in verdicts if verdict.skipped]
    print(
        f"\n{len(verdicts) - len(bad) - len(skipped)} of {len(verdicts)} faults ended as they must"
        + (f"; not: {', '.join(bad)}" if bad else "")
        + (f"; not run: {', '.join(skipped)}" if skipped else "")
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
