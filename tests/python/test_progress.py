# SPDX-License-Identifier: Apache-2.0
"""Who lags behind is told from the store, and a store that does not answer holds nobody up."""

import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from tidegate.progress import STORE_PATIENCE, Progress

SERVER = """
import time, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(100)
"""


@pytest.fixture
def server():
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    yield process, int(process.stdout.readline())
    process.kill()
    process.wait()


def progress_of(rank: int, port: int) -> Progress:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    return Progress(SimpleNamespace(get_group_store=lambda: store), "job", rank, 3)


def test_those_behind_and_those_that_gave_up_are_named(server):
    first, second, third = (progress_of(rank, server[1]) for rank in range(3))
    second.note((4, 1, 1))
    third.note((5, 0, 1), "timeout in all-gather of 8 bytes")
    assert first.laggards((5, 0, 1)) == (
        "Behind, as last seen: rank 1 (step 4, bucket 1, round 1). "
        "Gave up: rank 2 (step 5, bucket 0, round 1): timeout in all-gather of 8 bytes."
    )
    second.note((5, 0, 1))
    third.note((5, 0, 1))
    assert "No rank is known to be behind" in first.laggards((5, 0, 1))


def test_a_stopped_store_holds_nobody_up(server):
    process, port = server
    progress = progress_of(0, port)
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert "does not answer" in progress.laggards((1, 0, 0))
    progress.note((2, 0, 0))  # and is not asked again
    assert time.monotonic() - began < 2 * STORE_PATIENCE + 1
