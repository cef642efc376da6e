# SPDX-License-Identifier: Apache-2.0
import pytest
import torch


@pytest.fixture
def one_thread():
    """Torch computes in one thread, as real ranks do here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
