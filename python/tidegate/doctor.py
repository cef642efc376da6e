# SPDX-License-Identifier: Apache-2.0
"""`tidegate doctor`: what of this machine and its settings helps or hurts a job, and what to do.
Every check looks at one thing and takes what it looks at as arguments, so that tests can show it
machines that are not there."""

import json
import os
import shutil
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from . import __version__, _core
from .attach import DEFAULT_TIMEOUT
from .cli import check_writable, console, write_json
from .errors import Error
from .launchers import LAUNCHERS, WANTED, launcher

LEAST_TORCH, TESTED_TORCH = (2, 4), "2.13"
VIRTUAL = ("docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "tun", "tap", "wg")
LEVELS = ("error", "warning", "note", "ok")


@dataclass(frozen=True)
class Finding:
    level: str  # one of LEVELS
    subject: str
    found: str
    advice: str = ""  # for everything but "ok"


def run(arguments: Namespace) -> int:
    if arguments.json not in (None, "-"):
        check_writable("--json", arguments.json)
    findings = [
        check_torch(torch.__version__, dist.is_available() and dist.is_gloo_available()),
        check_kernels(_core.instruction_sets()),
        check_launcher(os.environ),
        check_interface(os.environ, interfaces(), address_of_this_host()),
        check_timeout(os.environ),
        check_threads(os.environ, processors()),
        check_huge_pages(read("/sys/kernel/mm/transparent_hugepage/enabled")),
        check_shared_memory(Path("/dev/shm")),
        check_mpi(shutil.which("mpirun")),
    ]
    if not arguments.no_self_test:
        findings += [check_methods(), check_two_ranks(os.environ)]
    findings.sort(key=lambda finding: LEVELS.index(finding.level))
    if arguments.json:
        write_json(
            arguments.json,
            {"v": 1, "kind": "doctor", "findings": [asdict(finding) for finding in findings]},
        )
    if arguments.json != "-":
        show(findings, arguments.quiet)
    return 1 if any(finding.level == "error" for finding in findings) else 0


def show(findings: list[Finding], quiet: bool) -> None:
    colours = {"error": "bold red", "warning": "yellow", "note": "cyan", "ok": "green"}
    terminal = console()
    for finding in findings:
        if quiet and finding.level in ("ok", "note"):
            continue
        terminal.print(f"{finding.level:>8}", style=colours[finding.level], end="  ")
        terminal.print(f"{finding.subject}: {finding.found}", soft_wrap=True)
        if finding.advice:
            terminal.print(f"{'':8}  -> {finding.advice}", soft_wrap=True)
    counts = [(sum(f.level == level for f in findings), level) for level in LEVELS]
    print(", ".join(f"{n} {level}{'s' if n > 1 and level != 'ok' else ''}" for n, level in counts))


# --- the installation ---


def check_torch(version: str, gloo: bool) -> Finding:
    python = ".".join(map(str, sys.version_info[:3]))
    found = f"tidegate {__version__}, torch {version}, Python {python}"
    if tuple(int(part) for part in version.split(".")[:2]) < LEAST_TORCH:
        least = ".".join(map(str, LEAST_TORCH))
        return Finding("error", "torch", found, f"install torch {least} or newer")
    if not gloo:
        return Finding(
            "error", "torch", f"{found}, without gloo", "install a torch that was built with gloo"
        )
    if not version.startswith(f"{TESTED_TORCH}."):
        return Finding(
            "note", "torch", found, f"tested with torch {TESTED_TORCH}; tell us what breaks"
        )
    return Finding("ok", "torch", f"{found}, with gloo")


def check_kernels(instruction_sets: list[str]) -> Finding:
    names = ["AVX-512" if name.startswith("AVX3") else name for name in instruction_sets]
    found = f"kernels use {names[0]}"
    if instruction_sets[0] in ("SSE2", "SSSE3", "SSE4", "EMU128", "SCALAR"):
        return Finding(
            "warning",
            "processor",
            found,
            "it has no AVX2, so compressing takes several times as long; `tidegate bench kernels` "
            "tells how long, and `auto` takes it into account",
        )
    return Finding("ok", "processor", f"{found} (of {', '.join(names)})")


def check_mpi(mpirun: str | None) -> Finding:
    if mpirun is None:
        return Finding(
            "note",
            "MPI",
            "no mpirun",
            "only needed for C++ jobs over MPI: install openmpi-bin and libopenmpi-dev",
        )
    return Finding("ok", "MPI", f"mpirun at {mpirun}")


# --- the job ---


def check_launcher(environ: Mapping[str, str]) -> Finding:
    name = launcher(environ)
    if name is None:
        half = [v for names in LAUNCHERS.values() for v in names[:2] if v in environ]
        if half:
            return Finding(
                "error",
                "launcher",
                f"{', '.join(half)} alone",
                "a rank needs RANK and WORLD_SIZE; unset them, or start the job with torchrun",
            )
        return Finding("ok", "launcher", "none (started by hand); torchrun, mpirun and srun work")
    values = dict(zip(WANTED, (environ.get(v, "") for v in LAUNCHERS[name]), strict=True))
    found = f"{name}, rank {values['RANK']} of {values['WORLD_SIZE']}"
    try:
        rank, ranks = int(values["RANK"]), int(values["WORLD_SIZE"])
        local = int(values["LOCAL_WORLD_SIZE"] or 0)
    except ValueError:
        return Finding("error", "launcher", found, "these must be whole numbers")
    if not 0 <= rank < ranks:
        return Finding("error", "launcher", found, "ranks go from 0 to WORLD_SIZE - 1")
    master = environ.get("MASTER_ADDR", "")
    if 0 < local < ranks and (master.startswith("127.") or master == "localhost"):
        return Finding(
            "error",
            "launcher",
            f"{found}, {local} of them here, but MASTER_ADDR={master}",
            "the other machines would look for rank 0 on themselves: set MASTER_ADDR to an address "
            "of rank 0's machine that they can reach",
        )
    return Finding("ok", "launcher", found)


def check_timeout(environ: Mapping[str, str]) -> Finding:
    text = environ.get("TORCH_DISTRIBUTED_DEBUG", "")
    found = f"a collective that takes longer than {DEFAULT_TIMEOUT:g} s fails the job"
    advice = "set attach(timeout=SECONDS) to a few times your slowest healthy step"
    if text.upper() == "DETAIL":
        return Finding(
            "warning",
            "time-outs",
            f"{found}; TORCH_DISTRIBUTED_DEBUG=DETAIL",
            "DETAIL checks every collective by another one, which costs much on slow links: unset "
            "it once you have seen what you wanted",
        )
    return Finding("note", "time-outs", found, advice)


def check_threads(environ: Mapping[str, str], cores: int) -> Finding:
    name = launcher(environ)
    local = environ.get(LAUNCHERS[name][3], "1") if name else "1"
    ranks = int(local) if local.isdigit() and int(local) > 0 else 1
    text = environ.get("OMP_NUM_THREADS")
    if text is None:
        found = f"{cores} cores for {ranks} {'rank' if ranks == 1 else 'ranks'} here"
        if ranks > 1:
            return Finding(
                "warning",
                "threads",
                f"{found}, OMP_NUM_THREADS is not set",
                f"every rank starts a thread for every core, and they fight: export "
                f"OMP_NUM_THREADS={max(1, cores // ranks)}",
            )
        return Finding("ok", "threads", found)
    threads = int(text) if text.isdigit() else 0
    found = f"{cores} cores for {ranks} ranks of {text} threads each (OMP_NUM_THREADS)"
    if threads < 1:
        return Finding("error", "threads", found, "OMP_NUM_THREADS must be a whole number above 0")
    if threads * ranks > cores:
        return Finding(
            "warning", "threads", found, f"export OMP_NUM_THREADS={max(1, cores // ranks)}"
        )
    if threads * ranks * 2 <= cores:
        return Finding(
            "note",
            "threads",
            found,
            f"most cores stay idle (torchrun sets 1 if you say nothing): try OMP_NUM_THREADS="
            f"{cores // ranks}",
        )
    return Finding("ok", "threads", found)


# --- the network ---


@dataclass(frozen=True)
class Interface:
    name: str
    up: bool
    mbit: int | None  # None = it does not tell
    addresses: tuple[str, ...]

    @property
    def usable(self) -> bool:
        return self.up and bool(self.addresses) and self.name != "lo"

    @property
    def virtual(self) -> bool:
        return self.name.startswith(VIRTUAL)


def check_interface(
    environ: Mapping[str, str], interfaces: list[Interface], own_address: str | None
) -> Finding:
    """Gloo takes GLOO_SOCKET_IFNAME, or else the interface with the address of the host's name."""
    known = {interface.name: interface for interface in interfaces}
    others = [i for i in interfaces if i.usable and not i.virtual]
    best = max(others, key=lambda i: i.mbit or 0, default=None)
    told = environ.get("GLOO_SOCKET_IFNAME")
    chosen: Interface | None
    use = f"export GLOO_SOCKET_IFNAME={best.name} on every machine" if best else ""
    if told is not None:
        missing = [name for name in told.split(",") if name not in known]
        if missing:
            return Finding(
                "error",
                "network",
                f"GLOO_SOCKET_IFNAME={told}, but there is no {missing[0]}",
                f"this machine has {', '.join(sorted(known)) or 'no interface'}",
            )
        chosen, how = known[told.split(",")[0]], "GLOO_SOCKET_IFNAME"
    elif own_address is None:
        return Finding(
            "error",
            "network",
            f"this host's name, {socket.gethostname()}, has no address",
            f"add it to /etc/hosts, or {use or 'set GLOO_SOCKET_IFNAME'}",
        )
    else:
        chosen = next((i for i in interfaces if own_address in i.addresses), None)
        how = f"this host's name means {own_address}"
        if chosen is None and not own_address.startswith("127."):
            return Finding(
                "error",
                "network",
                f"{how}, which no interface has",
                f"mend /etc/hosts, or {use or 'set GLOO_SOCKET_IFNAME'}",
            )
    if chosen is None or chosen.name == "lo":
        if best is None:
            return Finding("ok", "network", "only loopback: jobs on this machine alone")
        return Finding(
            "warning",
            "network",
            f"gloo would take loopback ({how})",
            f"fine on one machine; ranks elsewhere would not be reached: {use}",
        )
    speed = f"{chosen.mbit} Mbit/s" if chosen.mbit else "a speed it does not tell"
    found = f"gloo takes {chosen.name} ({how}), {speed}"
    if not chosen.up:
        return Finding("error", "network", f"{found}, which is down", use or "bring it up")
    if chosen.virtual and best:
        return Finding("warning", "network", f"{found}: a virtual interface of this machine", use)
    if best and (best.mbit or 0) > 1.5 * (chosen.mbit or float("inf")):
        return Finding(
            "warning",
            "network",
            f"{found}, while {best.name} has {best.mbit} Mbit/s",
            f"the wrong interface has cost others a factor of 94: {use}",
        )
    return Finding("ok", "network", found)


def interfaces() -> list[Interface]:
    addresses: dict[str, list[str]] = {}
    listed = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=False)
    for line in listed.stdout.splitlines() if listed.returncode == 0 else ():
        words = line.split()
        if len(words) > 3 and words[2] in ("inet", "inet6"):
            addresses.setdefault(words[1].partition("@")[0], []).append(words[3].split("/")[0])
    found = []
    for _, name in socket.if_nameindex():
        speed = read(f"/sys/class/net/{name}/speed")
        up = read(f"/sys/class/net/{name}/operstate") in ("up", "unknown")
        mbit = int(speed) if speed.isdigit() else None
        found.append(Interface(name, up, mbit, tuple(addresses.get(name, ()))))
    return found


def address_of_this_host() -> str | None:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return None


# --- the machine ---


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_huge_pages(enabled: str) -> Finding:
    """`enabled` = what the kernel says, its choice in brackets."""
    if not enabled:
        return Finding("note", "huge pages", "unknown", "nothing to do; large buffers work anyway")
    if "[never]" in enabled:
        return Finding(
            "note",
            "huge pages",
            "never",
            "passes over large buffers are faster with them: echo madvise > "
            "/sys/kernel/mm/transparent_hugepage/enabled",
        )
    return Finding("ok", "huge pages", enabled[enabled.find("[") + 1 : enabled.find("]")])


def check_shared_memory(folder: Path) -> Finding:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return Finding(
            "note",
            "shared memory",
            f"{folder} cannot be written",
            "only needed for emulated links (`tidegate demo`) and for loaders with workers",
        )
    return Finding("ok", "shared memory", f"{shutil.disk_usage(folder).free / 2**20:.0f} MiB free")


def read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


# --- a short self test ---


def check_methods() -> Finding:
    """One step of every method between two ranks in this process: both must get the same, and dense
    the mean."""
    elements = 100_000
    for row in _core.methods():
        level = {"ratio": {"ratio": "0.1"}, "rank": {"rank": "2"}}.get(row["level"], {})
        options = {"method": row["name"], **level}
        sessions = [_core.Session(rank, 2, "fixed", options) for rank in range(2)]
        gradients = [
            torch.randn(elements, generator=torch.Generator().manual_seed(rank)) for rank in (0, 1)
        ]
        mean = (gradients[0] + gradients[1]) / 2
        for session, gradient in zip(sessions, gradients, strict=True):
            session.lay_out(0, [("weight", elements, 100)])
            session.submit(gradient.data_ptr(), gradient.nbytes)
        try:
            _core.run_lockstep(sessions)
        except Error as error:
            return Finding("error", "self test", f"{row['name']}: {error}", REINSTALL)
        if not torch.equal(*gradients):
            return Finding("error", "self test", f"{row['name']}: ranks differ", REINSTALL)
        if row["name"] == "dense" and not torch.allclose(gradients[0], mean):
            return Finding("error", "self test", "dense is not the mean", REINSTALL)
    return Finding("ok", "self test", f"{len(_core.methods())} methods give all ranks the same")


REINSTALL = "the installation is broken: pip install --force-reinstall tidegate, and tell us"


def check_two_ranks(environ: Mapping[str, str]) -> Finding:
    """Two processes that measure what gloo makes of the chosen interface."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    clean = {k: v for k, v in environ.items() if k not in {*sum(LAUNCHERS.values(), ())}}
    clean |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tidegate", "probe", "--quiet", "--json", "-"]
    ranks = [
        subprocess.Popen(
            command,
            env={**clean, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=60) for rank in ranks]
    except subprocess.TimeoutExpired:
        return Finding(
            "error",
            "two ranks",
            "two processes of this machine did not reach each other through gloo within 60 s",
            "look at the finding on the network; a firewall may be in the way",
        )
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(rank.returncode for rank in ranks):
        lines = [line for _, err in said for line in err.splitlines()]
        return Finding(
            "error",
            "two ranks",
            lines[-1] if lines else "a rank ended without a word",
            "look at the finding on the network",
        )
    fit = json.loads(said[0][0])["network"]["all-reduce"]
    return Finding(
        "ok",
        "two ranks",
        f"all-reduce through gloo: {fit['latency_ms']:.2f} ms, {fit['mbit']:,.0f} Mbit/s",
    )
