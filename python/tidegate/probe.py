# SPDX-License-Identifier: Apache-2.0
"""`tidegate probe`: measures the network between the ranks of a job, through the engine that the
job would use. Every rank runs this; rank 0 shows what was found, which is the same on all."""

import os
from argparse import Namespace
from datetime import timedelta

import torch.distributed as dist

from .cli import check_writable, show_rows, shows, write_json
from .engine import Engine, plain
from .errors import Error
from .launchers import set_rendezvous

TIMEOUT = 60.0  # seconds


def run(arguments: Namespace) -> int:
    set_rendezvous(program="-m tidegate probe")
    if arguments.json not in (None, "-") and os.environ["RANK"] == "0":  # who writes it
        check_writable("--json", arguments.json)
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise Error(
            "timeout",
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} did not meet the others at "
            f"{where} ({plain(str(error))}); look whether rank 0 runs there, all {TIMEOUT:g} s, "
            "and whether a firewall is between",
        ) from None
    try:
        if dist.get_world_size() == 1:
            raise Error("config", "there is only one rank, and a network has two ends; start more")
        group = dist.group.WORLD
        assert group is not None, "just made"
        engine = Engine(group, TIMEOUT)
        calibration = engine.calibrate()
        result = {
            "v": 1,
            "kind": "probe",
            "engine": "gloo",
            "ranks": engine.ranks,
            "hosts": len(set(engine.hosts)),
            "seconds": calibration.seconds,
            "network": calibration.network.fits(),
            "points": [
                {"collective": collective, "bytes": nbytes, "ms": 1e3 * seconds}
                for collective, nbytes, seconds in calibration.points
            ],
        }
        engine.close()
    finally:
        dist.destroy_process_group()
    if engine.rank == 0:
        if arguments.json:
            write_json(arguments.json, result)
        if shows(arguments):
            show(result)
    return 0


def show(result: dict) -> None:
    rows = [{"collective": name, **fit} for name, fit in result["network"].items()]
    show_rows(
        rows,
        {
            "collective": lambda row: row["collective"],
            "Mbit/s": lambda row: f"{row['mbit']:.4g}",
            "latency": lambda row: f"{row['latency_ms']:.3g} ms",
            "hidden": lambda row: f"{100 * row['hidden']:.0f} %",
            "origin": lambda row: row["origin"],
        },
    )
    print(
        f"Measured through {result['engine']} between {result['ranks']} ranks on "
        f"{result['hosts']} host{'s' if result['hosts'] > 1 else ''} in {result['seconds']:.1f} s. "
        "Rate and latency are those of a link\non which textbook algorithms would take as long: an "
        "engine's own work is in them. hidden = share of\nthe latency that long messages hide. "
        "derived = from the nearest collective that was measured;\ntransfers of a running job "
        "correct it."
    )
