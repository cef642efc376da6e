# SPDX-License-Identifier: Apache-2.0
import os
import signal

# Some virtual machines announce instructions for bf16 that they do not execute, and torch's matrix
# products then end the process. Before torch is imported; ranks that tests start inherit it.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import pytest
import torch

# Shells start what goes to the background deaf to Ctrl-C, and whatever that starts is deaf too.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def one_thread():
    """Torch computes in one thread, as real ranks do here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
