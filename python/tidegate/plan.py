# SPDX-License-Identifier: Apache-2.0
"""`tidegate plan`: which method, level and route would make a step fastest, before training."""

from argparse import Namespace
from functools import cache

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from . import _core, model_shapes
from .attach import DEPTH
from .buckets import cut
from .cli import check_writable, write_json
from .errors import Error
from .plan_network import describe_link, goes_by_host, read_probe
from .plan_report import as_json, show
from .runs import parse_seconds


def run(arguments: Namespace) -> int:
    job, network = check(arguments)
    choices = _core.candidates(by_host=goes_by_host(network))
    console = Console(stderr=True, highlight=False, quiet=arguments.quiet)
    speeds = measure(choices, console) if arguments.compression == "measured" else None
    with console.status("modelling steps"):
        plan = _core.Plan(
            job["buckets"],
            network["ranks"],
            network["hosts"],
            [(name, *fit) for name, fit in network["fits"].items()],
            job["compute"],
            DEPTH,
            choices,
            speeds,
        )
    if arguments.json:
        write_json(arguments.json, as_json(arguments, job, network, plan))
    if arguments.json != "-":
        show(arguments, job, network, plan)
    if arguments.plot:
        from . import plan_plot

        plan_plot.draw(arguments.plot, plan, network)
    return 0


def check(arguments: Namespace) -> tuple[dict, dict]:
    """The job and the network. All mistakes are found here, before anything is measured."""
    for option, path in (("--json", arguments.json), ("--plot", arguments.plot)):
        if path and path != "-":
            check_writable(option, path)
    if arguments.plot:
        from . import plan_plot

        plan_plot.check(arguments.plot)
    if arguments.top < 1:
        raise Error("config", f"--top {arguments.top}: must be 1 or more")
    compute = parse_seconds("--compute", arguments.compute)
    if compute == 0:
        raise Error("config", "--compute 0: a step computes; write for example 30ms")
    network = read_probe(arguments) if arguments.probe is not None else describe_link(arguments)
    layers, source = read_layers(arguments)
    job = {
        "buckets": cut(layers, lambda layer: 4 * layer[1]),
        "parameters": sum(elements for _, elements, _ in layers),
        "source": source,
        "compute": compute,
    }
    return job, network


def read_layers(arguments: Namespace) -> tuple[list[model_shapes.Layer], str]:
    if arguments.shapes is not None:
        return model_shapes.from_file(arguments.shapes), f'shapes of "{arguments.shapes}"'
    if arguments.model is not None:
        return model_shapes.from_model(arguments.model), arguments.model
    count = int(arguments.parameters)
    if count < 1:
        raise Error("config", f"--parameters {arguments.parameters:g}: must be 1 or more")
    return model_shapes.from_count(count), "taken to be square matrices of up to 1024 x 1024"


@cache
def speed_table() -> _core.SpeedTable:
    """One for the process: what was measured once counts for all plans."""
    return _core.SpeedTable()


def measure(choices: list, console: Console) -> _core.SpeedTable:
    bar = Progress(
        TextColumn("measuring compression on this machine"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    )
    speeds = speed_table()
    with bar:
        for choice in bar.track(choices):
            speeds.measure(choice)
    return speeds
