# SPDX-License-Identifier: Apache-2.0
"""One rank of a job that Ctrl-C ends, started by test_interrupt.py as a user starts a script:

    interrupted_job.py RANK PORT FOLDER train|save

Says on stdout where it is, and at its end how long leaving took and which threads are left."""

import atexit
import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from training import attach, batches, mlp, sgd, train, wrap

import tidegate

interrupted_at = None


def say(*words) -> None:
    print(*words, flush=True)


@atexit.register  # before attach: so it is called after what attach registers
def tell_the_end():
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("tidegate")]
    say(f"left after {time.monotonic() - interrupted_at:.2f} s with threads {left}")


def main(rank: int, port: str, folder: str, what: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = wrap(mlp())
    optimizer = sgd(model)
    handle = attach(model, optimizer, timeout=300)
    train(model, optimizer, batches(rank, 3))
    say("ready")
    if what == "save":
        sys.stdin.readline()
        say("saving")
        tidegate.save(handle, folder)
    for data in batches(rank, 10**9):
        train(model, optimizer, [data])


try:
    main(int(sys.argv[1]), *sys.argv[2:])
except KeyboardInterrupt:
    interrupted_at = time.monotonic()
    raise
