# SPDX-License-Identifier: Apache-2.0
"""Who started this process as one of many: what torch.distributed wants to know (RANK, WORLD_SIZE,
LOCAL_RANK, LOCAL_WORLD_SIZE), and where each launcher says it."""

import os
from collections.abc import Mapping, MutableMapping

from .errors import Error

WANTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
LAUNCHERS = {
    "torchrun": WANTED,
    "mpirun (Open MPI)": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpiexec (MPICH, Intel MPI)": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "srun (Slurm)": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
}


def launcher(environ: Mapping[str, str] | None = None) -> str | None:
    """The first that tells a rank and how many there are. Inside a Slurm job torchrun and mpirun
    come first: there srun has started them, not the ranks."""
    environ = os.environ if environ is None else environ
    for name, variables in LAUNCHERS.items():
        if all(variable in environ for variable in variables[:2]):
            return name
    return None


def set_rendezvous(
    environ: MutableMapping[str, str] | None = None, program: str = "train.py"
) -> str:
    """Sets what torch.distributed reads from what the launcher has set, and returns its name. What
    is set already stays. Before init_process_group, for jobs that mpirun or srun starts."""
    environ = os.environ if environ is None else environ
    name = launcher(environ)
    if name is None:
        raise Error(
            "config",
            "no launcher has started this process; use torchrun, for example `torchrun "
            f"--nproc_per_node 4 {program}`, mpirun or srun, on the machines of your job",
        )
    for ours, theirs in zip(WANTED, LAUNCHERS[name], strict=True):
        if theirs in environ:
            environ.setdefault(ours, environ[theirs])
    if "MASTER_ADDR" not in environ:
        if environ.get("LOCAL_WORLD_SIZE") != environ["WORLD_SIZE"]:
            raise Error(
                "config",
                f"MASTER_ADDR is not set, and {name} does not tell; set it to the address of rank "
                "0's machine: `mpirun -x MASTER_ADDR=10.0.0.1 -x MASTER_PORT=29500 ...`, or "
                "`export MASTER_ADDR=$(scontrol show hostnames | head -n 1)` before srun",
            )
        environ["MASTER_ADDR"] = "127.0.0.1"
    environ.setdefault("MASTER_PORT", "29500")
    check_numbers(name, environ)
    return name


def check_numbers(name: str, environ: Mapping[str, str]) -> None:
    """torch would end in a traceback, or wait in vain for ranks that cannot be."""
    numbers = [environ[variable] for variable in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        told = f"rank {numbers[0]!r} of {numbers[1]!r}, MASTER_PORT {numbers[2]!r}"
    elif int(numbers[0]) >= int(numbers[1]) or not 0 < int(numbers[2]) < 2**16:
        told = f"rank {numbers[0]} of {numbers[1]}, MASTER_PORT {numbers[2]}"
    else:
        return
    raise Error(
        "config",
        f"the variables of {name} say {told}; ranks count from 0, ports up to 65535: look at what "
        "sets RANK, WORLD_SIZE and MASTER_PORT, and unset what an earlier job has left",
    )
