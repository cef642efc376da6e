# SPDX-License-Identifier: Apache-2.0
import json
import os
import socket
import subprocess
import sys

import pytest
import torch
from ranks import results, results_of_each, run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tidegate
from tidegate import cli
from tidegate.engine import Engine

COLLECTIVES = ["all-reduce", "all-gather", "broadcast", "all-to-all", "send-receive", "swap"]


def calibrated(rank, ranks, link):
    import torch.distributed as dist

    engine = Engine(dist.group.WORLD, 60.0, link)
    calibration = engine.calibrate()
    engine.close()
    return calibration.network.fits(), calibration.points, calibration.seconds


def test_a_calibration_is_the_same_on_all_ranks():
    everyone = results(calibrated, 3, None)
    assert everyone[0] == everyone[1] == everyone[2]
    fits, points, seconds = everyone[0]
    assert list(fits) == COLLECTIVES
    assert fits["all-reduce"]["origin"] == "measured"
    assert all(fit["mbit"] > 0 and fit["latency_ms"] >= 0 for fit in fits.values())
    assert {collective for collective, _, _ in points} <= set(COLLECTIVES)
    assert seconds > 0


def launched(*command: str, environment: dict | None = None) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    return subprocess.run(
        command,
        env={**clean, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_probe_under_torchrun(tmp_path):
    file = tmp_path / "probe.json"
    done = launched(
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
        "-m", "tidegate", "probe", "--json", str(file),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Measured through gloo between 2 ranks on 1 host" in done.stdout
    assert done.stdout.count("all-gather") == 1  # only one rank speaks
    probe = json.loads(file.read_text())
    assert (probe["v"], probe["kind"], probe["ranks"], probe["hosts"]) == (1, "probe", 2, 1)
    assert list(probe["network"]) == COLLECTIVES


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_probe_under_mpirun():
    # Ranks of one machine, so that it need not be told where the first one is.
    options = ("--allow-run-as-root", "--oversubscribe", "-x", f"MASTER_PORT={free_port()}")
    probe = (sys.executable, "-m", "tidegate", "probe", "--json", "-")
    done = launched("mpirun", "-n", "2", *options, *probe)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"] == 2  # and only one rank speaks


@pytest.mark.all
def test_probe_under_slurm():
    """What srun sets, without a cluster."""
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tidegate", "probe", "--json", "-"],
            env={
                **{k: v for k, v in os.environ.items() if k not in ("RANK", "MASTER_ADDR")},
                "GLOO_SOCKET_IFNAME": "lo",
                "MASTER_PORT": port,
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": "2",
                "SLURM_LOCALID": str(rank),
                "SLURM_NTASKS_PER_NODE": "2",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert json.loads(said[0])["ranks"] == 2
    assert said[1] == ""


@pytest.mark.parametrize(
    ("environment", "advice"),
    [
        ({}, "torchrun --nproc_per_node 4 -m tidegate probe"),
        (
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
            "mpirun -x MASTER_ADDR=10.0.0.1",
        ),
        ({"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "say rank 'x' of '2', MASTER_PORT"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "ranks count from 0"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "70000"},
            "unset what an earlier job has left",
        ),
    ],
)
def test_probe_without_a_launcher_says_how_to_start_it(capsys, monkeypatch, environment, advice):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # What the command sets for torch must not outlive the test.
    monkeypatch.setattr(os, "environ", os.environ.copy())
    assert cli.main(["probe"]) == 2
    err = capsys.readouterr().err
    assert advice in err
    assert err.count("\n") == 1


def test_a_rank_that_meets_nobody_says_where_it_waited(capsys, monkeypatch):
    told = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29473"}
    monkeypatch.setattr(os, "environ", {**os.environ, **told})
    monkeypatch.setattr("tidegate.probe.TIMEOUT", 1.0)
    assert cli.main(["probe"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("tidegate probe: rank 1 of 2 did not meet the others at 127.0.0.1:29473")
    assert err.count("\n") == 1


def trained_with(rank, ranks, options):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = tidegate.attach(model, optimizer, policy="fixed", method="int8", **options)
    for step in range(20):
        torch.manual_seed(100 * step + rank)
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    stats = handle.stats()
    handle.detach()
    return stats


def test_a_job_knows_its_network():
    for stats in results(trained_with, 2, {"calibrate": True}):
        assert list(stats["network"]) == COLLECTIVES
        assert stats["network"]["all-reduce"]["origin"] == "measured"
        assert stats["medians"]["compute_ms"] > 0
        assert len(stats["medians"]["buckets"]) == 1


def test_transfers_alone_tell_something_of_the_network():
    first, second = (stats["network"] for stats in results(trained_with, 2, {}))
    assert first["all-gather"]["origin"] == "measured"
    assert first["all-gather"]["mbit"] == second["all-gather"]["mbit"]


def known_at_once(rank, ranks, options):
    """What is known of the network before the first step, by a policy that goes by prices."""
    model = DistributedDataParallel(nn.Linear(64, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = tidegate.attach(model, optimizer, policy="auto", timeout=30, **options)
    network = handle.stats()["network"]
    handle.detach()
    return network


@pytest.mark.all
def test_calibration_is_skipped_on_request():
    measured, skipped = results_of_each(known_at_once, 2, [({},), ({"calibrate": False},)])
    assert all(network["all-reduce"]["origin"] == "measured" for network in measured)
    assert skipped == [None, None]


def attach_unequally(rank, ranks):
    trained_with(rank, ranks, {"calibrate": rank == 0})


def test_ranks_that_disagree_about_calibration_are_told_so():
    for outcome in run_ranks(attach_unequally, 2):
        assert outcome.kind == "config"
        assert "calibrate" in outcome.text
