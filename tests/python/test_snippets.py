# SPDX-License-Identifier: Apache-2.0
"""The README's Python runs as it stands, under torchrun. (Its C++ is compiled and run by ctest.)"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def snippets(tmp_path):
    command = [sys.executable, ROOT / "tools/readme_snippets.py", ROOT / "README.md"]
    subprocess.run([*command, "--language", "python", "--output", tmp_path], check=True)
    found = sorted(tmp_path.glob("*.py"))
    assert found
    return found


def test_python_snippets_run_under_torchrun(snippets):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    for snippet in snippets:
        done = subprocess.run(
            [*torchrun, "--nproc-per-node", "2", snippet],
            capture_output=True,
            text=True,
            timeout=100,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        assert "'steps': 20" in done.stdout
        assert "terminate called" not in done.stderr
