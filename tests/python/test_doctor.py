# SPDX-License-Identifier: Apache-2.0
"""Every check is shown machines and settings that are fine and that are not."""

import json
import subprocess
import sys

import pytest

import tidegate
from tidegate import cli, doctor
from tidegate.doctor import Interface
from tidegate.launchers import launcher, set_rendezvous

LOOPBACK = Interface("lo", True, None, ("127.0.0.1", "::1"))
SLOW = Interface("eth0", True, 100, ("10.0.0.5",))
FAST = Interface("eth1", True, 10000, ("10.1.0.5",))
DOCKER = Interface("docker0", True, 10000, ("172.17.0.1",))
DOWN = Interface("eth2", False, 1000, ("10.2.0.5",))
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SLURM = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("environ", "interfaces", "own", "level", "words"),
    [
        ({}, [LOOPBACK, SLOW], "10.0.0.5", "ok", "eth0"),
        ({}, [LOOPBACK, SLOW, FAST], "10.0.0.5", "warning", "GLOO_SOCKET_IFNAME=eth1"),
        ({}, [LOOPBACK, SLOW, FAST], "10.1.0.5", "ok", "eth1"),
        ({}, [LOOPBACK, SLOW], "127.0.1.1", "warning", "GLOO_SOCKET_IFNAME=eth0"),
        ({}, [LOOPBACK], "127.0.0.1", "ok", "only loopback"),
        ({}, [LOOPBACK, DOCKER, SLOW], "172.17.0.1", "warning", "GLOO_SOCKET_IFNAME=eth0"),
        ({}, [LOOPBACK, SLOW], "10.9.9.9", "error", "which no interface has"),
        ({}, [LOOPBACK, SLOW], None, "error", "/etc/hosts"),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, [LOOPBACK, SLOW], None, "ok", "eth0"),
        ({"GLOO_SOCKET_IFNAME": "ib0"}, [LOOPBACK, SLOW], "10.0.0.5", "error", "no ib0"),
        ({"GLOO_SOCKET_IFNAME": "eth2"}, [LOOPBACK, DOWN, SLOW], None, "error", "is down"),
        ({"GLOO_SOCKET_IFNAME": "lo"}, [LOOPBACK, SLOW], None, "warning", "ranks elsewhere"),
    ],
)
def test_the_interface_that_gloo_takes(environ, interfaces, own, level, words):
    finding = doctor.check_interface(environ, interfaces, own)
    assert finding.level == level, finding
    assert words in finding.found + finding.advice


@pytest.mark.parametrize(
    ("environ", "level", "words"),
    [
        ({}, "ok", "none"),
        (TORCHRUN, "ok", "torchrun, rank 1 of 4"),
        (MPIRUN, "ok", "mpirun (Open MPI), rank 3 of 4"),
        (SLURM, "ok", "srun (Slurm), rank 0 of 2"),
        ({"RANK": "0"}, "error", "RANK alone"),
        (TORCHRUN | {"RANK": "4"}, "error", "WORLD_SIZE - 1"),
        (TORCHRUN | {"RANK": "x"}, "error", "whole numbers"),
        (
            TORCHRUN | {"LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
            "error",
            "set MASTER_ADDR",
        ),
    ],
)
def test_the_launcher(environ, level, words):
    finding = doctor.check_launcher(environ)
    assert finding.level == level, finding
    assert words in finding.found + finding.advice


@pytest.mark.parametrize(
    ("environ", "cores", "level", "words"),
    [
        ({}, 8, "ok", "8 cores"),
        (TORCHRUN, 8, "warning", "OMP_NUM_THREADS=2"),
        (TORCHRUN | {"OMP_NUM_THREADS": "2"}, 8, "ok", "2 threads"),
        (TORCHRUN | {"OMP_NUM_THREADS": "8"}, 8, "warning", "OMP_NUM_THREADS=2"),
        (TORCHRUN | {"OMP_NUM_THREADS": "1"}, 16, "note", "OMP_NUM_THREADS=4"),
        ({"OMP_NUM_THREADS": "many"}, 8, "error", "whole number"),
    ],
)
def test_threads_per_rank(environ, cores, level, words):
    finding = doctor.check_threads(environ, cores)
    assert finding.level == level, finding
    assert words in finding.found + finding.advice


def test_the_rest_of_the_machine(tmp_path):
    assert doctor.check_torch("2.3.1", True).level == "error"
    assert doctor.check_torch("2.13.0+cpu", False).level == "error"
    assert doctor.check_torch("2.20.0", True).level == "note"
    assert doctor.check_torch("2.13.0+cpu", True).level == "ok"
    assert doctor.check_kernels(["SSE2"]).level == "warning"
    assert doctor.check_kernels(["AVX2", "SSE2"]).level == "ok"
    assert doctor.check_huge_pages("always madvise [never]").level == "note"
    assert doctor.check_huge_pages("always [madvise] never").found == "madvise"
    assert doctor.check_shared_memory(tmp_path / "none").level == "note"
    assert doctor.check_timeout({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}).level == "warning"
    assert doctor.check_mpi(None).level == "note"


@pytest.mark.all
def test_the_whole_of_it_on_this_machine():
    said = subprocess.run(
        [sys.executable, "-m", "tidegate", "doctor", "--json", "-"],
        capture_output=True,
        text=True,
        timeout=110,
    )
    findings = {f["subject"]: f for f in json.loads(said.stdout)["findings"]}
    assert findings["self test"]["level"] == findings["two ranks"]["level"] == "ok", findings
    assert all(f["advice"] for f in findings.values() if f["level"] != "ok")
    errors = any(f["level"] == "error" for f in findings.values())
    assert said.returncode == (1 if errors else 0)


def test_errors_come_first_and_make_the_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "interfaces", lambda: [LOOPBACK, SLOW])
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert cli.main(["doctor", "--no-self-test", "--quiet"]) == 1
    said = capsys.readouterr().out
    assert said.lstrip().startswith("error  network: GLOO_SOCKET_IFNAME=ib0, but there is no ib0")
    assert "-> this machine has eth0, lo" in said
    assert " ok  " not in said


@pytest.mark.parametrize("variables", [TORCHRUN, MPIRUN, SLURM])
def test_what_torch_reads_is_set_from_what_the_launcher_says(variables):
    environ = {**variables, "MASTER_ADDR": "10.0.0.1"}
    name = launcher(environ)
    assert set_rendezvous(environ) == name
    assert int(environ["RANK"]) < int(environ["WORLD_SIZE"])
    assert environ["MASTER_ADDR"] == "10.0.0.1"
    assert environ["MASTER_PORT"] == "29500"


def test_ranks_on_one_machine_need_no_address():
    environ = dict(MPIRUN, OMPI_COMM_WORLD_LOCAL_SIZE="4")
    set_rendezvous(environ)
    assert environ["MASTER_ADDR"] == "127.0.0.1"
    with pytest.raises(tidegate.Error, match="MASTER_ADDR is not set, and mpirun"):
        set_rendezvous(dict(MPIRUN))
