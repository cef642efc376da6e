#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what a lab delivers: run it in one, with --quiet for the result alone.

    sudo tools/netlab run --ranks 4 --link 100mbit,2ms --quiet -- tools/netlab_probe.py

Round trip of one byte between ranks 0 and 1 while nothing else travels, and again while every rank
sends to the next; goodput of that ring (every link full in both directions), and of all ranks
sending to rank 0 at once.
"""

import os
import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PORT = 5000
SECONDS = float(os.environ.get("NETLAB_PROBE_SECONDS", "3"))
SKIPPED = 0.5  # at first, while TCP finds the rate
CHUNK = bytes(1 << 18)


def connect(rank: int) -> socket.socket:
    for _ in range(200):
        try:
            link = socket.create_connection((f"10.77.0.{rank + 1}", PORT), timeout=30)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.sendall(bytes([RANK]))
            return link
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"rank {RANK} cannot reach rank {rank}")


def receive_exactly(link: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise SystemExit(f"rank {RANK}: the other side has closed")
        data += part
    return data


class Links:
    """A connection to and from every other rank."""

    def __init__(self):
        listener = socket.create_server(("", PORT), backlog=RANKS)
        others = [rank for rank in range(RANKS) if rank != RANK]
        self.to = {rank: connect(rank) for rank in others}
        self.by = {}
        for _ in others:
            link, _ = listener.accept()
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.by[receive_exactly(link, 1)[0]] = link

    def barrier(self) -> None:
        for link in self.to.values():
            link.sendall(b"b")
        for link in self.by.values():
            receive_exactly(link, 1)

    def round_trips(self, count: int, pause: float) -> list[float]:
        """In milliseconds, on rank 0."""
        if RANK > 1:
            return []
        times = []
        for _ in range(count):
            began = time.perf_counter()
            if RANK == 0:
                self.to[1].sendall(b"p")
                receive_exactly(self.by[1], 1)
            else:
                receive_exactly(self.by[0], 1)
                self.to[0].sendall(b"p")
            times.append(1e3 * (time.perf_counter() - began))
            time.sleep(pause)
        return times[5:]


def send_for_a_while(link: socket.socket) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        link.sendall(CHUNK)
    link.shutdown(socket.SHUT_WR)


def receive_all(links: list[socket.socket]) -> float:
    """Goodput of all together in Mbit/s, without the beginning and the end."""
    counted = [0] * len(links)
    began = time.monotonic()

    def drain(position: int, link: socket.socket) -> None:
        buffer = bytearray(1 << 20)
        while size := link.recv_into(buffer):
            if began + SKIPPED < time.monotonic() < began + SECONDS:
                counted[position] += size

    run_together([(drain, position, link) for position, link in enumerate(links)])
    return 8e-6 * sum(counted) / (SECONDS - SKIPPED)


def run_together(calls: list[tuple]) -> None:
    """Calls of functions with their arguments, each in a thread; the first exception counts."""
    with ThreadPoolExecutor(max(1, len(calls))) as threads:
        for future in [threads.submit(*call) for call in calls]:
            future.result()


def bulk(receivers: dict[int, list[int]]) -> float:
    """Who receives from whom, over fresh connections; returns what this rank received."""
    quiet = Links()
    quiet.barrier()
    got = []
    sources = [quiet.by[rank] for rank in receivers.get(RANK, [])]
    targets = [quiet.to[rank] for rank, senders in receivers.items() if RANK in senders]
    calls = [(send_for_a_while, link) for link in targets]
    run_together([*calls, (lambda: got.append(receive_all(sources)),)])
    return got[0]


def main() -> None:
    links = Links()
    links.barrier()
    idle = links.round_trips(count=105, pause=0.002)
    links.barrier()

    loaded = []
    # Over connections of their own, so that they wait in the queues of the link only.
    pinging = threading.Thread(
        target=lambda: loaded.extend(links.round_trips(count=45, pause=SECONDS / 60))
    )
    global PORT
    PORT += 1
    pinging.start()
    ring = bulk({rank: [(rank - 1) % RANKS] for rank in range(RANKS)})
    pinging.join()
    links.barrier()
    PORT += 1
    incast = bulk({0: list(range(1, RANKS))})
    for link in links.to.values():
        link.sendall(b"%8.1f" % ring)
    rates = [ring, *(float(receive_exactly(link, 8)) for link in links.by.values())]
    if RANK == 0:
        middle = statistics.median
        print(f"round trip, idle    {middle(idle):8.2f} ms (min {min(idle):.2f})")
        print(f"round trip, loaded  {middle(loaded):8.2f} ms")
        print(f"ring, every rank    {min(rates):8.1f} to {max(rates):.1f} Mbit/s")
        print(f"all to rank 0       {incast:8.1f} Mbit/s together")


if __name__ == "__main__":
    main()
