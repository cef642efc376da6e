# SPDX-License-Identifier: Apache-2.0
"""A lab: one network namespace per rank, joined by links of the same rate and latency.

Without latency the ranks hang on a bridge in a namespace of its own, by veth pairs:

    rank 0: eth0 --TBF-->   <--TBF-- port0  switch: br0  port1 --TBF-->   <--TBF-- eth0 :rank 1

With latency every eth0 is a TAP device of the relay (netlab_relay.cpp), which is the switch. What
arrives passes a TBF as well, through ifb0: otherwise many senders could fill one receiver's link
several times over.

Nothing is made in the namespace of the machine. Everything that belongs to the lab NAME is called
netlab-NAME-..., and is noted in /run/netlab/NAME, whose lock tells whether its netlab still runs.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from netlab_job import die_with_parent
from netlab_link import Link, NetlabError, shape

STATE = Path("/run/netlab")
SPACES = Path("/run/netns")  # where ip keeps them
# Buffers for long links, and every run the same: TCP neither forgets within a run nor remembers
# between runs. No IPv6: its discovery would be traffic that nobody asked for.
SYSCTLS = {
    "net/ipv4/tcp_rmem": "4096 1048576 67108864",
    "net/ipv4/tcp_wmem": "4096 1048576 67108864",
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv4/tcp_no_metrics_save": "1",
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
}


def tool(*command: str, script: str | None = None) -> str:
    done = subprocess.run(command, input=script, capture_output=True, text=True)
    if done.returncode:
        raise NetlabError(
            f"`{' '.join(command)}` failed: {done.stderr.strip()}\n"
            "A container needs --privileged, or the capabilities NET_ADMIN and SYS_ADMIN; the "
            "kernel\nneeds veth, bridge and sch_tbf, and for latency tun, ifb, cls_u32 and "
            "act_mirred"
        )
    return done.stdout


def address(rank: int) -> str:
    return f"10.77.0.{rank + 1}"


CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")


@contextmanager
def new_spaces_use_cubic() -> Iterator[None]:
    """A namespace inherits the host's congestion control, and may not change it. Others than CUBIC
    pace what they send by timers, which a machine that is not always running serves late: a ring
    of four at 100 Mbit/s took 78 to 92 ms per 800 kB by BBR, and 69 to 71 by CUBIC."""
    before = CONGESTION_CONTROL.read_text()
    with suppress(OSError):  # not in this kernel: then as the host does
        CONGESTION_CONTROL.write_text("cubic")
    try:
        yield
    finally:
        CONGESTION_CONTROL.write_text(before)


class Lab:
    def __init__(self, name: str):
        self.name = name
        self.state = STATE / name
        self.control = self.state / "latency"  # the relay's FIFO
        self.relay: subprocess.Popen | None = None
        self._lock = None

    def space(self, part: int | str) -> str:
        """The namespace of a rank, or of the "switch"."""
        return f"netlab-{self.name}-{part}"

    def spaces(self) -> list[str]:
        """Those that exist."""
        # Not `ip netns list`, which also opens those of others, and they may be gone by then.
        return sorted(path.name for path in SPACES.glob(f"netlab-{self.name}-*"))

    def owner(self) -> int | None:
        """The netlab that runs this lab; None if it has ended."""
        with suppress(OSError, ValueError), open(self.state / "lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read() or 0)
        return None

    def reserve(self) -> None:
        """Makes the name ours, before anything is made that would have to be removed."""
        with registry():
            try:
                self.state.mkdir()
            except FileExistsError:
                raise NetlabError(
                    f"there is a lab {self.name} already; choose another --name, or remove what a "
                    f"killed netlab left: netlab clean --name {self.name}"
                ) from None
            self._lock = open(self.state / "lock", "w")  # noqa: SIM115 - locked while we live
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            print(os.getpid(), file=self._lock, flush=True)

    def build(self, ranks: int, link: Link, relay: Path | None) -> None:
        (self.state / "hosts").write_text(self._hosts(ranks))
        for rank in range(ranks):
            with new_spaces_use_cubic():
                tool("ip", "netns", "add", self.space(rank))
            lines = (f"echo {value} >/proc/sys/{name}" for name, value in SYSCTLS.items())
            in_space = ("ip", "netns", "exec", self.space(rank))
            # A kernel without IPv6 has no such file, and needs none.
            tool(*in_space, "sh", script="\n".join(f"{line} 2>/dev/null" for line in lines) + "\n:")
        if relay:
            self._start_relay(ranks, link, relay)
        else:
            self._build_bridge(ranks)
        for rank in range(ranks):
            script = f"addr add {address(rank)}/24 dev eth0\nlink set lo up\nlink set eth0 up\n"
            tool("ip", "-n", self.space(rank), "-batch", "-", script=script)
        self.set_rate(link)

    def congestion_control(self) -> str:
        return tool("ip", "netns", "exec", self.space(0), "cat", str(CONGESTION_CONTROL)).strip()

    def _hosts(self, ranks: int) -> str:
        lines = ["127.0.0.1 localhost"]
        for rank in range(ranks):
            name = self.space(rank)
            # torch looks up the IPv6 form of an address, and complains when it finds nothing.
            lines += [f"{address(rank)} {name}", f"::ffff:{address(rank)} {name}-mapped"]
        return "\n".join(lines) + "\n"

    def _build_bridge(self, ranks: int) -> None:
        switch = self.space("switch")
        tool("ip", "netns", "add", switch)
        script = "link add br0 type bridge stp_state 0 forward_delay 0\nlink set br0 up\n"
        for rank in range(ranks):
            peer = f"peer name eth0 netns {self.space(rank)}"
            script += f"link add port{rank} type veth {peer}\nlink set port{rank} master br0 up\n"
        tool("ip", "-n", switch, "-batch", "-", script=script)

    def _start_relay(self, ranks: int, link: Link, relay: Path) -> None:
        os.mkfifo(self.control, 0o600)
        paths = [str(SPACES / self.space(rank)) for rank in range(ranks)]
        self.relay = subprocess.Popen(
            [relay, str(link.latency_us), self.control, *paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        if self.relay.stdout.readline() != "ready\n":
            raise NetlabError(f"the relay did not start: {self.relay.stderr.read().strip()}")
        redirect = "action mirred egress redirect dev ifb0"
        for rank in range(ranks):
            space = self.space(rank)
            tool("ip", "-n", space, "link", "add", "ifb0", "type", "ifb")
            tool("ip", "-n", space, "link", "set", "ifb0", "up")
            script = (
                "qdisc add dev eth0 ingress\n"
                f"filter add dev eth0 parent ffff: protocol all u32 match u32 0 0 {redirect}\n"
            )
            tool("tc", "-n", space, "-batch", "-", script=script)

    def set_rate(self, link: Link) -> None:
        """Also while a job runs. A slower link loses what was queued for the faster one."""
        frame, discipline = shape(link).frame, self._discipline(link)
        switch = self.space("switch")
        spaces = self.spaces()
        ranks = [space for space in spaces if space != switch]
        receiving = "" if switch in spaces else f"qdisc replace dev ifb0 {discipline}\n"
        for space in ranks:
            tool("ip", "-n", space, "link", "set", "eth0", "gso_max_size", str(frame))
            script = f"qdisc replace dev eth0 {discipline}\n{receiving}"
            tool("tc", "-n", space, "-batch", "-", script=script)
        if switch in spaces:
            ports = (f"qdisc replace dev port{rank} {discipline}" for rank in range(len(ranks)))
            tool("tc", "-n", switch, "-batch", "-", script="\n".join(ports) + "\n")

    def _discipline(self, link: Link) -> str:
        """Arguments of tc that let a device send at the rate of the link.

        A frame larger than the bucket is split on its way into the queue, but one that is queued
        already would never leave: when the bucket shrinks, a new queue takes the place of the old.
        """
        settings = shape(link)
        file = self.state / "queue"
        handle, bucket = map(int, file.read_text().split()) if file.exists() else (1, 0)
        handle += settings.bucket < bucket
        file.write_text(f"{handle} {settings.bucket}\n")
        size = f"burst {settings.bucket} limit {settings.queue}"
        return f"root handle {handle}: tbf rate {link.bits_per_second}bit {size}"

    def set_latency(self, link: Link) -> None:
        if not self.control.exists():
            raise NetlabError(
                f"lab {self.name} runs without latency, so it has no relay that could add one; "
                "start it with the smallest you need, for example --link 1gbit,50us"
            )
        # Read and write: does not wait for a reader that may have ended.
        with open(self.control, "r+b", buffering=0) as control:
            control.write(b"%d\n" % link.latency_us)

    def processes(self) -> list[int]:
        """Everything that runs in the namespaces, also what a rank started and left behind."""
        listed = (tool("ip", "netns", "pids", space) for space in self.spaces())
        return [int(process) for text in listed for process in text.split()]

    def end_processes(self) -> None:
        began = time.monotonic()
        number = signal.SIGTERM
        while (left := self.processes()) and time.monotonic() < began + 5:
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, number)
            time.sleep(0.02)
            number = signal.SIGKILL if time.monotonic() > began + 2 else 0

    def stop_relay(self) -> str:
        """What the relay says about its lateness."""
        if not self.relay:
            return ""
        self.relay.terminate()
        try:
            said = self.relay.communicate(timeout=5)[0]
        except subprocess.TimeoutExpired:
            self.relay.kill()
            said = self.relay.communicate()[0]
        self.relay = None
        return said

    def remove(self) -> None:
        """Everything, whatever state it is in."""
        self.end_processes()
        self.stop_relay()
        for space in self.spaces():
            tool("ip", "netns", "del", space)
        shutil.rmtree(self.state, ignore_errors=True)


@contextmanager
def registry():
    """While a lab gets its name, nobody looks for labs that nobody owns."""
    STATE.mkdir(exist_ok=True)
    folder = os.open(STATE, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def labs() -> list[Lab]:
    """All that were made on this machine and not removed."""
    return [Lab(path.name) for path in sorted(STATE.glob("*"))]
