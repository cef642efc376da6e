# SPDX-License-Identifier: Apache-2.0
"""tools/netlab makes networks, runs jobs in them, and leaves nothing behind. Needs root."""

import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools/netlab"
NETLAB = [sys.executable, str(SCRIPT)]
sys.path.insert(0, str(ROOT / "tools"))

from netlab_link import NetlabError, parse_link, shape  # noqa: E402


def why_no_labs() -> str | None:
    if os.geteuid():
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "ip and tc are missing: apt-get install iproute2"
    probe = subprocess.run(["unshare", "--net", "--mount", "--uts", "true"], capture_output=True)
    return "this machine does not permit namespaces" if probe.returncode else None


needs_labs = pytest.mark.skipif(why_no_labs() is not None, reason=str(why_no_labs()))
needs_tap = pytest.mark.skipif(not os.path.exists("/dev/net/tun"), reason="no /dev/net/tun")


class Named:
    """A lab of our own, beside those of others."""

    def __init__(self):
        self.name = f"test{uuid.uuid4().hex[:10]}"

    def arguments(self, *job: str, link: str = "100mbit", options=()) -> list:
        named = ["--name", self.name, "--ranks", "2", "--link", link]
        return [*NETLAB, "run", *named, *options, "--", *job]

    def run(self, *job: str, **more) -> subprocess.CompletedProcess[str]:
        command = self.arguments(*job, **more)
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def traces(self) -> list[str]:
        spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        left = [line for line in spaces.splitlines() if f"-{self.name}-" in line]
        state = Path("/run/netlab", self.name)
        return [*left, *([str(state)] if state.exists() else []), *self.processes()]

    def processes(self) -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if f"NETLAB_NAME={self.name}\0".encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_text())
        return found


@pytest.fixture
def lab():
    lab = Named()
    yield lab
    assert lab.traces() == []


def start(lab: Named, *job: str, **more) -> subprocess.Popen:
    """Returns when every rank has printed a line."""
    process = subprocess.Popen(lab.arguments(*job, **more), stdout=subprocess.PIPE, text=True)
    assert {process.stdout.readline() for _ in range(2)} == {"[rank 0] up\n", "[rank 1] up\n"}
    return process


@needs_labs
def test_every_rank_runs_the_command_as_torchrun_would_start_it(lab):
    script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR:$MASTER_PORT $GLOO_SOCKET_IFNAME; \
        hostname; ip -4 -o addr show eth0; tc qdisc show dev eth0"
    done = lab.run("sh", "-c", script)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        prefix = f"[rank {rank}] "
        lines = [line[len(prefix) :] for line in done.stdout.splitlines() if prefix in line]
        assert lines[0] == f"{rank}/2 0 10.77.0.1:29500 eth0"
        assert lines[1] == f"netlab-{lab.name}-{rank}"
        assert f" 10.77.0.{rank + 1}/24 " in lines[2]
        assert "tbf" in lines[3] and "rate 100Mbit" in lines[3]


@needs_labs
def test_the_ranks_reach_each_other_and_nobody_else(lab):
    script = """
import os, socket
if os.environ["RANK"] == "0":
    with socket.create_server(("10.77.0.1", 5000)) as server:
        print(server.accept()[0].recv(100).decode())
else:
    while True:
        try:
            link = socket.create_connection(("10.77.0.1", 5000), timeout=10)
            break
        except ConnectionRefusedError:
            pass
    link.sendall(b"hello from rank 1")
    try:
        socket.create_connection(("192.0.2.1", 80), timeout=10)
    except OSError as error:
        print(error.strerror)
"""
    done = lab.run(sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert lines == ["[rank 0] hello from rank 1", "[rank 1] Network is unreachable"]


@needs_labs
def test_the_exit_code_of_the_rank_that_failed_is_passed_on_and_the_others_are_ended(lab):
    done = lab.run("sh", "-c", "[ $RANK = 0 ] || exit 7; sleep 600")
    assert done.returncode == 7
    assert "rank 1 failed with exit code 7" in done.stderr


@needs_labs
def test_quiet_leaves_the_plain_output_of_rank_0(lab):
    done = lab.run("sh", "-c", "echo $RANK; echo e$RANK >&2", options=["--quiet"])
    assert done.stdout == "0\n"
    assert sorted(done.stderr.splitlines()) == ["[rank 0] e0", "[rank 1] e1"]


@needs_labs
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_that_ranks_started(lab, number):
    # The second sleep has left the session of its rank.
    process = start(lab, "sh", "-c", "echo up; setsid sleep 600 & sleep 600")
    process.send_signal(number)
    assert process.wait(timeout=30) == 128 + number


@needs_labs
def test_clean_removes_what_a_killed_netlab_left_but_nothing_in_use(lab):
    process = start(lab, "sh", "-c", "echo up; setsid sleep 600 & sleep 600")
    clean = [*NETLAB, "clean", "--name", lab.name]
    in_use = subprocess.run(clean, capture_output=True, text=True, timeout=30)
    assert f"in use by process {process.pid}" in in_use.stderr
    assert process.poll() is None
    process.kill()
    process.wait()
    assert lab.traces() != []
    assert subprocess.run(clean, capture_output=True, timeout=30).returncode == 0


@needs_labs
def test_set_changes_the_rate_of_a_running_lab(lab):
    job = "echo up; until tc qdisc show dev eth0 | grep 'rate 5Mbit'; do sleep 0.02; done"
    process = start(lab, "sh", "-c", job)
    change = [*NETLAB, "set", "--name", lab.name, "--link"]
    subprocess.run([*change, "5mbit"], check=True, timeout=30)
    no_relay = subprocess.run([*change, "5mbit,1ms"], capture_output=True, text=True, timeout=30)
    assert process.wait(timeout=30) == 0
    assert no_relay.returncode == 2


STREAM = """
import os, socket, subprocess, sys
if os.environ["RANK"] == "0":
    with socket.create_server(("10.77.0.1", 5000)) as server:
        link = server.accept()[0]
        try:
            while True:
                link.sendall(bytes(100_000))
        except OSError:
            pass  # the receiver has seen enough
else:
    while True:
        try:
            link = socket.create_connection(("10.77.0.1", 5000), timeout=10)
            break
        except ConnectionRefusedError:
            pass
    change = [sys.executable, os.environ["NETLAB"], "set", "--name", os.environ["NETLAB_NAME"]]
    slower = subprocess.Popen([*change, "--link", "10mbit"])
    while slower.poll() is None:
        assert link.recv(100_000)
    after = 0
    while after < 400_000:
        after += len(link.recv(100_000))
    print("goes on")
"""


@needs_labs
def test_a_stream_goes_on_when_the_link_becomes_slower_under_it(lab, monkeypatch):
    monkeypatch.setenv("NETLAB", str(SCRIPT))
    done = lab.run(sys.executable, "-c", STREAM)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[rank 1] goes on\n"


ROUND_TRIP = """
import os, socket, subprocess, sys, time
if os.environ["RANK"] == "0":
    with socket.create_server(("10.77.0.1", 5000)) as server:
        link = server.accept()[0]
        while data := link.recv(1):
            link.sendall(data)
else:
    while True:
        try:
            link = socket.create_connection(("10.77.0.1", 5000), timeout=10)
            break
        except ConnectionRefusedError:
            pass
    def least(count=5):
        times = []
        for _ in range(count):
            began = time.monotonic()
            link.sendall(b"x")
            link.recv(1)
            times.append(time.monotonic() - began)
        return min(times)
    first = least()
    change = [sys.executable, os.environ["NETLAB"], "set", "--name", os.environ["NETLAB_NAME"]]
    subprocess.run([*change, "--link", "100mbit,20ms"], check=True)
    time.sleep(0.1)
    print(first, least())
"""


@needs_labs
@needs_tap
def test_latency_is_added_can_be_changed_and_the_relay_tells_how_late_it_was(lab, monkeypatch):
    monkeypatch.setenv("NETLAB", str(SCRIPT))
    done = lab.run(sys.executable, "-c", ROUND_TRIP, link="100mbit,5ms")
    assert done.returncode == 0, done.stderr
    before, after = map(float, done.stdout.removeprefix("[rank 1] ").split())
    assert before >= 2 * 0.005
    assert after >= 2 * 0.020
    report = re.search(r"relay: (\d+) frames, late by p50 \d+ us, p99 \d+ us", done.stderr)
    assert report and int(report[1]) > 20


@needs_labs
@pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun")
def test_mpirun_starts_one_rank_per_namespace(lab):
    done = lab.run("sh", "-c", "echo $OMPI_COMM_WORLD_RANK $(hostname)", options=["--mpirun"])
    assert done.returncode == 0, done.stderr
    expected = [f"[rank {rank}] {rank} netlab-{lab.name}-{rank}" for rank in (0, 1)]
    assert sorted(done.stdout.splitlines()) == expected


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["run", "--ranks", "2", "--link", "100", "--", "true"], "write for example 100mbit,2ms"),
        (["run", "--ranks", "2", "--link", "1bit", "--", "true"], "from 10kbit to 100gbit"),
        (["run", "--ranks", "2", "--link", "1gbit"], "put the command last"),
        (["run", "--ranks", "0", "--link", "1gbit", "--", "true"], "must be from 1 to 64"),
        (["run", "--ranks", "2", "--link", "1gbit", "--name", "A b", "--", "true"], "lower-case"),
        (["run", "--ranks", "2", "--", "true"], "--link"),
        (["set", "--link", "fast"], "write for example"),
        ([], "COMMAND"),
    ],
)
def test_mistakes_get_advice_and_exit_code_2(arguments, advice):
    done = subprocess.run([*NETLAB, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert advice in done.stderr


@needs_labs
def test_a_command_that_does_not_exist_is_found_out_before_anything_is_made(lab):
    done = lab.run("no-such-command")
    assert done.returncode == 2
    assert "found no command no-such-command" in done.stderr


WITHOUT_ANYTHING = """
import os, runpy, shutil, sys
shutil.which = lambda name: None
os.geteuid = lambda: 1000
sys.path.insert(0, os.path.dirname(sys.argv[1]))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_says_all_that_is_missing_and_how_to_get_it():
    job = ["run", "--ranks", "2", "--link", "1gbit,1ms", "--", "true"]
    command = [sys.executable, "-c", WITHOUT_ANYTHING, SCRIPT, *job]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    for advice in ("start it with sudo", "tc: sudo apt-get install iproute2", "install g++"):
        assert advice in done.stderr


@pytest.mark.parametrize(
    ("text", "bits", "microseconds"),
    [
        ("100mbit,2ms", 100e6, 2000),
        ("2.5gbit,0.5ms", 2.5e9, 500),
        ("56kbit,1s", 56e3, 1_000_000),
        ("1gbit,50us", 1e9, 50),
        ("1e3mbit,0ms", 1e9, 0),
        ("100mbit", 100e6, None),
    ],
)
def test_reads_links(text, bits, microseconds):
    link = parse_link(text)
    assert (link.bits_per_second, link.latency_us) == (bits, microseconds)


@pytest.mark.parametrize(
    "text", ["", "mbit", "-1mbit", "0mbit", "100Mbit", "1gbit,", "1gbit,2", "1gbit,1h"]
)
def test_rejects_what_is_no_link(text):
    with pytest.raises(NetlabError, match="link"):
        parse_link(text)


@pytest.mark.parametrize("rate", ["10kbit", "10mbit", "100mbit", "1gbit", "10gbit"])
def test_a_bucket_holds_a_frame_and_a_queue_holds_buckets(rate):
    settings = shape(parse_link(rate))
    assert 1514 < settings.frame < settings.bucket < settings.queue
