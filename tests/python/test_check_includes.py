# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools/check_includes.py", root]
    return subprocess.run(command, capture_output=True, text=True)


def write(root: Path, folder: str, include: str) -> None:
    path = root / "tidegate" / folder / "file.cpp"
    path.parent.mkdir(parents=True)
    path.write_text(f"// A first line.\n#include {include}\n")


def test_the_tree_is_clean():
    result = check(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("folder", "include"),
    [
        ("base", "<vector>"),
        ("wire", '"tidegate/wire/message.h"'),
        ("wire", '"tidegate/kernels/kernels.h"'),
        ("session", '"tidegate/base/error.h"'),
        ("kernels", '"hwy/highway.h"'),
        ("mpi", '"tidegate/comm/engine.h"'),
    ],
)
def test_accepts_own_folder_left_folders_and_third_parties(tmp_path, folder, include):
    write(tmp_path, folder, include)
    assert check(tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("folder", "include", "advice"),
    [
        ("base", '"tidegate/wire/message.h"', "base may include only base"),
        ("kernels", '"tidegate/comm/engine.h"', "kernels may include only base, kernels"),
        ("feedback", '"tidegate/network/link.h"', "feedback may include only"),
        ("sim", '"tidegate/session/session.h"', "sim may include only"),
        ("mpi", '"tidegate/session/session.h"', "mpi may include only base, kernels, comm, mpi"),
        ("session", '"tidegate/mpi/engine.h"', "mpi is a library of its own"),
        ("sim", '"tidegate/utils/utils.h"', "utils is no folder of the arrow"),
        ("utils", "<vector>", "folder utils has no place in the arrow"),
        ("wire", '"../session/session.h"', "write the path from the root"),
        ("session", "<torch/torch.h>", "knows neither torch nor Python"),
        ("session", "<Python.h>", "knows neither torch nor Python"),
        ("session", "<nanobind/nanobind.h>", "knows neither torch nor Python"),
    ],
)
def test_finds_a_wrong_include_and_says_what_to_do(tmp_path, folder, include, advice):
    write(tmp_path, folder, include)
    result = check(tmp_path)
    assert result.returncode == 1
    line = 1 if folder == "utils" else 2
    assert result.stdout.startswith(f"tidegate/{folder}/file.cpp:{line}: ")
    assert advice in result.stdout
