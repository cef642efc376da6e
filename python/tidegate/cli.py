# SPDX-License-Identifier: Apache-2.0
"""The command `tidegate`. What a command needs beyond the library is imported when it runs."""

import argparse
import json
import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import __version__, _core
from .errors import Error

if TYPE_CHECKING:
    from rich.console import Console

Commands = argparse._SubParsersAction
INTERRUPTED = 130  # as shells report a program that Ctrl-C ended


class Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, without repeating the whole usage."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        text = " ".join(message.split())  # arguments that it repeats may be of several lines
        self.exit(2, f"{self.prog}: {text}; see {self.prog} --help\n")


def filled(text: str) -> str:
    """Whoever writes --json="$FILE" and has set no FILE does not mean to leave the option out."""
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; give a value, or leave it out")
    return text


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0, 1 if it failed, 2 if it was given wrongly."""
    parser = make_parser()
    argv = sys.argv[1:] if argv is None else argv
    try:
        for word in argv:
            if not is_text(word):
                parser.error(f"{word!r} is not UTF-8 text without zero bytes")
        arguments, unknown = parser.parse_known_args(argv)
        if unknown:
            whose = parsers_of(parser).get(arguments.command, parser)
            whose.error(f"unrecognized arguments: {' '.join(unknown)}")
    except SystemExit as done:  # --help, --version or a mistake, told already
        return int(done.code or 0)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        return arguments.run(arguments)
    except Error as error:
        text = " ".join(str(error).split())
        print(f"tidegate {arguments.command}: {text}", file=sys.stderr)
        sys.stderr.writelines(getattr(error, "__notes__", ()))  # such as the end of a log
        return 2 if error.kind == "config" else 1
    except ModuleNotFoundError as error:  # installed without what the package asks for
        if (error.name or "").partition(".")[0] != "rich":
            raise
        print(f"tidegate {arguments.command}: rich is missing; pip install rich", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"tidegate {arguments.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def is_text(word: str) -> bool:
    """Whether it came in as UTF-8, which can be the name of a file; Python keeps other bytes in
    words that nothing else can read."""
    try:
        return b"\0" not in word.encode()
    except UnicodeEncodeError:
        return False


def parsers_of(parser: Parser) -> dict[str, Parser]:
    """By command."""
    commands = next(each for each in parser._actions if isinstance(each, Commands))
    return commands.choices


def make_parser() -> Parser:
    parser = Parser(
        prog="tidegate",
        description="Data-parallel training on networks that are slow, shared or changing.",
        epilog="Start with:\n  tidegate demo\nHelp on a command:\n  tidegate demo --help",
    )
    parser.add_argument("--version", action="version", version=f"tidegate {__version__}")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    add_demo(commands)
    add_probe(commands)
    add_simulate(commands)
    add_plan(commands)
    add_bench(commands)
    add_explain(commands)
    add_replay(commands)
    add_report(commands)
    add_export(commands)
    add_doctor(commands)
    add_methods(commands)
    add_table(
        commands, "policies", "list the rules that choose a method and a level", show_policies
    )
    for command in commands.choices.values():
        command.register("type", None, filled)  # for all texts
    return parser


def add_json(parser: Parser, quiet: str = "show nothing, for --json and the exit code") -> None:
    """What every command has."""
    parser.add_argument(
        "--json", metavar="FILE", help="also write the result as JSON; - = only that, on stdout"
    )
    parser.add_argument("--quiet", action="store_true", help=quiet)


def add_table(commands: Commands, name: str, summary: str, run: Callable[[Namespace], int]) -> None:
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"Tidegate {name}: {summary}.",
        epilog=f"Example:\n  tidegate {name} --json - | python3 -m json.tool",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def add_methods(commands: Commands) -> None:
    summary = "list the ways of compressing a gradient, and what each would send"
    parser = commands.add_parser(
        "methods",
        help=summary,
        description="Tidegate methods: lists the ways of compressing a gradient: level, routes, "
        "and the bytes that one rank\nsends for one gradient of the given size, slots and headers "
        "included, by each route.",
        epilog="Examples:\n"
        "  tidegate methods\n"
        "  tidegate methods --elements 11e6 --ranks 16 --ratio 0.001\n"
        "  tidegate methods --json - | python3 -m json.tool",
    )
    add = parser.add_argument
    add("--elements", type=positive, default=25e6, metavar="N", help="of the gradient (25e6)")
    add("--ranks", type=int, default=8, metavar="N", help="that take part (%(default)s)")
    add("--ratio", type=float, default=0.01, metavar="R", help="for sparsifiers (%(default)s)")
    add("--rank", type=int, default=4, metavar="K", help="for low rank (%(default)s)")
    add_json(parser)
    parser.set_defaults(run=show_methods)


def add_demo(commands: Commands) -> None:
    summary = "train one small model three ways on an emulated slow link, and compare"
    parser = commands.add_parser(
        "demo",
        help=summary,
        description="Trains a small CNN on Fashion-MNIST with real processes on this machine, "
        "three times\nfrom the same weights: with DDP in fp32, with DDP in bf16 and with Tidegate. "
        "Every exchange\nof gradients is held back as the link you describe would: times are "
        "emulated. Takes about\ntwo minutes.",
        epilog="Examples:\n"
        "  tidegate demo\n"
        "  tidegate demo --link 1gbit,0.5ms                  a faster network\n"
        "  tidegate demo --link-schedule 'C2*0.01'           a network that changes\n"
        "  tidegate demo --ratio 0.05                        send more, lose less\n"
        "  tidegate demo --method artopk-star --ratio 0.01\n"
        '  tidegate demo --policy "schedule:levels=0 bf16;50 topk 0.01"\n'
        "  tidegate demo --steps 20 --json - --quiet         for scripts",
    )
    add = parser.add_argument
    add("--ranks", type=int, default=4, metavar="N", help="processes, 1 to 16 (%(default)s)")
    network = parser.add_mutually_exclusive_group()
    network.add_argument(
        "--link",
        default="100mbit,2ms",
        metavar="RATE,LATENCY",
        help="rate per rank and direction, and one-way latency (%(default)s)",
    )
    network.add_argument(
        "--link-schedule",
        metavar="C1|C2|NAME*FACTOR|FILE",
        help="a link that changes by step, instead of --link: the emulated networks C1 and C2 of "
        "Flexible Communication (arXiv 2312.02493) over the steps of the run, up to 25 Gbit/s, "
        "which no single machine can show: C2*0.01 takes a hundredth of the rates; or a file of "
        "lines STEP RATE,LATENCY",
    )
    add("--epochs", type=int, default=1, metavar="N", help="passes over the data (%(default)s)")
    add("--policy", metavar="NAME:KEY=VALUE,...", help="see tidegate policies (auto)")
    add(
        "--method",
        metavar="NAME",
        help="this one throughout, instead of a policy; see tidegate methods",
    )
    add("--ratio", type=float, metavar="R", help="share that is sent, in (0, 1] (0.01)")
    add("--rank", type=int, metavar="N", help="of the matrices that are sent, 1 to 8 (2)")
    add("--batch", type=int, default=64, metavar="N", help="images per rank and step (%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of weights and data order (%(default)s)")
    add("--steps", type=int, metavar="N", help="end every run after N steps at the latest")
    add(
        "--trace",
        default="tidegate-demo.jsonl",
        metavar="FILE",
        help="where Tidegate writes down what it did (%(default)s)",
    )
    add_json(parser, quiet="show no progress, only the result")
    parser.set_defaults(run=run_demo)


def add_simulate(commands: Commands) -> None:
    from . import synthetic

    summary = "train a task with virtual workers under several policies, and compare"
    parser = commands.add_parser(
        "simulate",
        help=summary,
        description="Trains one task under every policy you name, and with dense fp32 and bf16 "
        "beside them, in\nvirtual clusters: N workers in this process, with real gradients through "
        "the real exchange.\nWhat is learned and how many bytes are sent is what a cluster of N "
        "would see. Seconds are\nmodelled from the link and the time that computing takes.",
        epilog="Examples:\n"
        "  tidegate simulate                                 auto on Fashion-MNIST\n"
        "  tidegate simulate --policy topk:ratio=0.01 --policy int8 --policy powersgd:rank=4\n"
        "  tidegate simulate --task char-gpt --ranks 8 --link 1gbit,0.5ms --seeds 3\n"
        "  tidegate simulate --compute 120ms                 as long as one step takes your GPU\n"
        '  tidegate simulate --policy "schedule:levels=0 bf16;100 topk 0.01"\n'
        "  tidegate simulate --task my_job:make_task         your own: a function that returns a\n"
        "                                                    tidegate.Task; it is given seed= and\n"
        "                                                    steps= if it has such parameters\n"
        "  tidegate simulate --link-schedule 'C2*0.01'       a link that changes\n"
        "  tidegate simulate --synthetic --ranks 4096 --steps 1000 --parameters 350e6 \\\n"
        "    --compute 200ms --link 25gbit,10us --policy topk:ratio=0.001,route=owner\n"
        "  tidegate simulate --steps 20 --json - --quiet     for scripts\n"
        "Tasks: fashion-mnist (CNN, SGD), char-gpt (AdamW), char-lstm (SGD, clipped).",
    )
    add = parser.add_argument
    add("--task", metavar="NAME", help="or module:function (fashion-mnist)")
    add("--ranks", type=int, default=4, metavar="N", help="virtual workers (%(default)s)")
    add("--steps", type=int, default=200, metavar="N", help="of every run (%(default)s)")
    add(
        "--link",
        metavar="RATE,LATENCY",
        help="rate per rank and direction, and one-way latency (100mbit,2ms)",
    )
    add(
        "--link-schedule",
        metavar="C1|C2|NAME*FACTOR|FILE",
        help="a link that changes by step, instead of --link; see tidegate demo --help",
    )
    add(
        "--policy",
        action="append",
        metavar="NAME:KEY=VALUE,...",
        help="see tidegate policies; or METHOD:KEY=VALUE,..., short for fixed:method=METHOD,...; "
        "may be repeated (auto)",
    )
    add("--no-baselines", action="store_true", help="leave out dense fp32 and bf16")
    add("--seed", type=int, action="append", metavar="N", help="may be repeated (0)")
    add("--seeds", type=int, metavar="N", help="the seeds 0 to N-1")
    add(
        "--compute",
        metavar="TIME",
        help="forward and backward of one worker, such as 30ms (measured on this machine)",
    )
    add(
        "--trace",
        metavar="FILE",
        help="write down what each policy did; with several policies or seeds, one file for each",
    )
    add_json(parser, quiet="show no progress, only the result")
    synthetic.add_arguments(parser)
    parser.set_defaults(run=run_simulate)


def add_plan(commands: Commands) -> None:
    summary = "tell which method, level and route would make a step fastest on your network"
    parser = commands.add_parser(
        "plan",
        help=summary,
        description="Tells before training which method, level and route would make a step "
        "fastest. Times are modelled\nfrom the network, the sizes of the model, how long a step "
        "computes, and what compressing takes,\nwhich is measured on this machine (some seconds).",
        epilog="Examples:\n"
        "  tidegate plan --parameters 25e6 --ranks 8 --link 1gbit,0.5ms --compute 80ms\n"
        "  tidegate plan --model mymodels:resnet --probe probe.json --compute 80ms\n"
        "  tidegate plan --shapes shapes.json --ranks 16 --hosts 4 --link 10gbit,50us "
        "--compute 200ms --plot plan.svg",
    )
    add = parser.add_argument
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--parameters", type=positive, metavar="N", help="of a model, such as 25e6")
    model.add_argument(
        "--shapes",
        metavar="FILE",
        help='a model\'s parameters in its order: JSON [["conv1.weight", [64, 3, 7, 7]], ...] or '
        "lines such as conv1.weight,64x3x7x7",
    )
    model.add_argument("--model", metavar="MODULE:FUNCTION", help="that returns a torch module")
    network = parser.add_mutually_exclusive_group(required=True)
    network.add_argument(
        "--link", metavar="RATE,LATENCY", help="rate per rank and direction, one-way latency"
    )
    network.add_argument("--probe", metavar="FILE", help="as tidegate probe --json wrote it")
    add("--ranks", type=int, metavar="N", help="that share the work; of the probe if left out")
    add("--hosts", type=int, metavar="N", help="that the ranks run on (one each)")
    add(
        "--compute",
        required=True,
        metavar="TIME",
        help="of a step without any exchange: forward, backward, optimiser; such as 80ms",
    )
    add(
        "--compression",
        choices=("measured", "none"),
        default="measured",
        help="what compressing takes: measured here, or no time (%(default)s)",
    )
    add("--top", type=int, default=15, metavar="N", help="rows to show (%(default)s)")
    add("--all", action="store_true", help="show all rows, and every route")
    add("--plot", metavar="FILE", help="step over rate of the link, as .svg, .png or .pdf")
    add_json(parser, quiet="show no progress, only the result")
    parser.set_defaults(run=run_plan)


def add_bench(commands: Commands) -> None:
    summary = "measure kernels, messages or exchanges on this machine, each beside its roofline"
    parser = commands.add_parser(
        "bench",
        help=summary,
        description="Measures how fast this machine compresses. Every row is a ratio: what is "
        "measured and what\nit is held against (a pass that only adds, a copy, torch) run in "
        "turn in one process, and\nthe median of the pairs is shown, with its goal where there is "
        "one. A few minutes; keep the\nmachine quiet meanwhile.",
        epilog="Examples:\n"
        "  tidegate bench kernels\n"
        "  tidegate bench wire --json wire.json\n"
        "  tidegate bench exchange                            whole exchanges, without a network\n"
        "  tidegate bench kernels --largest 1e8 --seconds 3   longer, and larger vectors\n"
        "  tidegate bench kernels --quick                     half a minute, rough",
    )
    add = parser.add_argument
    add(
        "suite",
        choices=("kernels", "wire", "exchange", "policies"),
        help="compression itself, its messages, all that a method does, or deciding",
    )
    add("--seconds", type=positive, default=1.0, metavar="S", help="per row (%(default)s)")
    add(
        "--largest",
        type=positive,
        default=25e6,
        metavar="N",
        help="elements of the largest vector, up to 1e8 (25e6)",
    )
    add("--quick", action="store_true", help="small vectors and short runs")
    add_json(parser, quiet="show no progress, only the result")
    parser.set_defaults(run=run_bench)


def add_doctor(commands: Commands) -> None:
    summary = "look for what slows down or breaks jobs on this machine, and say what to do"
    parser = commands.add_parser(
        "doctor",
        help=summary,
        description="Looks at the installation, the processor, the launcher's variables, the "
        "interface that gloo\nwould take, time-outs, threads per rank, huge pages; then tests all "
        "methods, and two ranks on\nthis machine (some seconds). Every finding comes with advice. "
        "Exit code 1 if there is an error.",
        epilog="Examples:\n"
        "  tidegate doctor\n"
        "  torchrun --nproc_per_node 2 -m tidegate doctor --no-self-test   as a rank sees it\n"
        "  tidegate doctor --json - | python3 -m json.tool",
    )
    parser.add_argument("--no-self-test", action="store_true", help="only look")
    add_json(parser, quiet="only errors and warnings")
    parser.set_defaults(run=run_doctor)


def add_explain(commands: Commands) -> None:
    summary = "tell the story of a run, from its trace"
    parser = commands.add_parser(
        "explain",
        help=summary,
        description="Tells what a run did and why: every decision that changed something with its "
        "reason, changes of\nthe network, drops of the learning rate, faults; then bytes and times "
        "over the steps, and sums.",
        epilog="Examples:\n"
        "  tidegate demo --trace run.jsonl && tidegate explain run.jsonl\n"
        "  tidegate explain run.jsonl --json - | python3 -m json.tool\n"
        'A trace is written by attach(..., trace="run.jsonl"), tidegate demo --trace, tidegate '
        "simulate --trace.",
    )
    add = parser.add_argument
    add("trace", metavar="TRACE", help="the file that the run wrote")
    add("--all", action="store_true", help="every event, also of a long story")
    add_json(parser)
    parser.set_defaults(run=run_explain)


def add_replay(commands: Commands) -> None:
    summary = "repeat the decisions of a run from its trace, or ask another policy"
    parser = commands.add_parser(
        "replay",
        help=summary,
        description="Asks the policy of a recorded run again, with everything it was told then, "
        "and compares decision\nby decision. Exit code 1 if any differs. With --policy another one "
        "is asked instead, and shown\nbeside: what it is told is what the recorded run led to.",
        epilog="Examples:\n"
        "  tidegate replay run.jsonl\n"
        "  tidegate replay run.jsonl --policy topk:ratio=0.05\n"
        "  tidegate replay run.jsonl --policy my_policies:careful --timings\n"
        "  tidegate replay run.jsonl --json - | python3 -m json.tool\n"
        "To make a new job take the decisions of a recorded one: --policy replay:file=run.jsonl of "
        "tidegate demo\nor simulate.",
    )
    add = parser.add_argument
    add("trace", metavar="TRACE", help="the file that the run wrote")
    add(
        "--policy",
        metavar="NAME:KEY=VALUE,...",
        help="another policy, on the same inputs; also module:function of your own",
    )
    add(
        "--timings",
        action="store_true",
        help="also compare the recorded times of steps with modelled ones",
    )
    add("--all", action="store_true", help="every row, also of a long list")
    add_json(parser)
    parser.set_defaults(run=run_replay)


def add_report(commands: Commands) -> None:
    summary = "draw a page about one run or several, from their traces"
    parser = commands.add_parser(
        "report",
        help=summary,
        description="Writes one HTML page that needs no network to be read: what was saved against "
        "fp32 and 16 bits and\nhow that is known, learning over time and over bytes, what was sent "
        "and why, network and times.\nSeveral runs are compared. docs/REPORT.md tells how to read "
        "it.",
        epilog="Examples:\n"
        "  tidegate demo --trace run.jsonl && tidegate report run.jsonl\n"
        "  tidegate report dense.jsonl auto.jsonl -o compared.html\n"
        "  tidegate report run.jsonl --json - | python3 -m json.tool\n"
        'A trace is written by attach(..., trace="run.jsonl"); handle.log(loss=...) adds a loss.',
    )
    add = parser.add_argument
    add("traces", nargs="+", metavar="TRACE", help="files that runs wrote")
    add(
        "-o",
        "--output",
        default="tidegate-report.html",
        metavar="FILE",
        help="the page (%(default)s)",
    )
    add_json(parser)
    parser.set_defaults(run=run_report)


def add_export(commands: Commands) -> None:
    summary = "turn a trace into CSV, a timeline for Perfetto, TensorBoard or W&B"
    parser = commands.add_parser(
        "export",
        help=summary,
        description="Writes what a trace holds in forms that other tools read. Several at once may "
        "be given.",
        epilog="Examples:\n"
        "  tidegate export run.jsonl --csv run.csv\n"
        "  tidegate export run.jsonl --perfetto timeline.json --steps 100:110\n"
        "      open it in https://ui.perfetto.dev or chrome://tracing\n"
        "  tidegate export run.jsonl --tensorboard runs/auto\n"
        "  tidegate export run.jsonl --wandb my-project",
    )
    add = parser.add_argument
    add("trace", metavar="TRACE", help="the file that the run wrote")
    add("--csv", metavar="FILE", help="a line per step")
    add(
        "--perfetto",
        metavar="FILE",
        help="a timeline: when every bucket computed, was compressed, on the wire and decoded",
    )
    add("--tensorboard", metavar="FOLDER", help="scalars by step; needs the package tensorboard")
    add("--wandb", metavar="PROJECT", help="a run of Weights & Biases; needs the package wandb")
    add("--steps", metavar="FIRST:LAST", help="only these; either may be left out")
    add_json(parser)
    parser.set_defaults(run=run_export)


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e10:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number above 0 and below 1e10")
    return value


def add_probe(commands: Commands) -> None:
    summary = "measure the network between the ranks of a job"
    parser = commands.add_parser(
        "probe",
        help=summary,
        description="Measures latency and rate of every collective through the engine that "
        "training would use\n(gloo), in one to three seconds. Start it as you start your job, on "
        "the same machines.",
        epilog="Examples:\n"
        "  torchrun --nproc_per_node 4 -m tidegate probe\n"
        "  torchrun --nnodes 4 --nproc_per_node 1 --rdzv_endpoint host0:29400 -m tidegate probe "
        "--json probe.json\n"
        "  mpirun -n 4 tidegate probe\n"
        "  tidegate plan --probe probe.json --parameters 25e6 --compute 80ms\n"
        "What MPI itself makes of the network: examples/mpi_probe.",
    )
    add_json(parser)
    parser.set_defaults(run=run_probe)


def run_probe(arguments: Namespace) -> int:
    from . import probe

    return probe.run(arguments)


def run_doctor(arguments: Namespace) -> int:
    from . import doctor

    return doctor.run(arguments)


def run_explain(arguments: Namespace) -> int:
    from . import explain

    return explain.run(arguments)


def run_replay(arguments: Namespace) -> int:
    from . import replay

    return replay.run(arguments)


def run_report(arguments: Namespace) -> int:
    from . import report

    return report.run(arguments)


def run_export(arguments: Namespace) -> int:
    from . import export

    return export.run(arguments)


def run_bench(arguments: Namespace) -> int:
    from . import bench

    return bench.run(arguments)


def run_plan(arguments: Namespace) -> int:
    from . import plan

    return plan.run(arguments)


def run_demo(arguments: Namespace) -> int:
    from . import demo

    return demo.run(arguments)


def run_simulate(arguments: Namespace) -> int:
    if arguments.synthetic:
        from . import synthetic

        return synthetic.run(arguments)
    from . import simulate, synthetic

    synthetic.check_absent(arguments)
    arguments.task = arguments.task or "fashion-mnist"
    return simulate.run(arguments)


def show_methods(arguments: Namespace) -> int:
    elements = int(arguments.elements)
    layers = [("gradient", elements, max(1, round(elements**0.5)))]  # as one square matrix
    levels = {"ratio": arguments.ratio, "rank": arguments.rank, "none": 1.0}
    rows = _core.methods()
    for row in rows:
        row["bytes_sent"] = {
            route: sum(
                sent
                for _, _, sent in _core.rounds(
                    row["name"], levels[row["level"]], route, 0, layers, arguments.ranks
                )
            )
            for route in row["routes"]
        }
    levels = {"ratio": "ratio", "rank": "rank 1-8", "none": "-"}
    columns = {
        "method": lambda row: row["name"],
        "level": lambda row: levels[row["level"]],
        "route": lambda row: "\n".join(row["bytes_sent"]),
        "bytes sent": lambda row: "\n".join(map(megabytes, row["bytes_sent"].values())),
        "what it sends": lambda row: (
            row["summary"]
            + (f" ({' or '.join(map(str, row['bits']))} bits)" if row["bits"] else "")
            + ("; error feedback" if row["error_feedback"] else "")
        ),
    }
    code = show(arguments, "methods", rows, columns)
    if shows(arguments):
        print(
            f"Bytes that one of {arguments.ranks} ranks sends for a gradient of {elements:,} "
            f"elements, at ratio {arguments.ratio:g} or rank {arguments.rank} (as one square "
            "matrix) and in the first number of bits. Where ranks share hosts every method can "
            "also go by hosts+ROUTE."
        )
    return code


def megabytes(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e5 else f"{count / 1e3:.3g} kB"


def show_policies(arguments: Namespace) -> int:
    rows = _core.policies()
    if arguments.json:
        write_json(arguments.json, {"v": 1, "policies": rows})
    if shows(arguments):
        for row in rows:
            print(f"\n{row['name']}: {row['summary']}")
            show_rows(
                row["options"],
                {
                    "option": lambda option: option["name"],
                    "standard": lambda option: option["standard"] or "-",
                    "meaning": lambda option: option["meaning"],
                },
            )
        print("Or your own, as module:function or from Python and C++; see docs/POLICIES.md.")
    return 0


def shows(arguments: Namespace) -> bool:
    """Whether a command that shows nothing but its result shows it."""
    return arguments.json != "-" and not arguments.quiet


def show(arguments: Namespace, name: str, rows: list[dict], columns: dict) -> int:
    if arguments.json:
        write_json(arguments.json, {"v": 1, name: rows})
    if shows(arguments):
        show_rows(rows, columns)
    return 0


def show_rows(rows: list, columns: dict, broken: int = 1) -> None:
    """A table; columns = {heading: row -> text}, of which the last ones may be broken."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for number, heading in enumerate(columns):
        table.add_column(heading, no_wrap=number < len(columns) - broken)
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    console().print(table)


def console() -> "Console":
    """As wide as the terminal; where there is none, as wide as our own texts."""
    from rich.console import Console

    columns = shutil.get_terminal_size((100, 25)).columns
    return Console(markup=False, highlight=False, width=columns)


def check_writable(option: str, path: str) -> None:
    """Before the work, rather than after it: that a file of this name can be written."""
    target = Path(path)
    writable = target if target.exists() else target.parent
    if target.is_dir() or not writable.exists() or not os.access(writable, os.W_OK):
        raise Error(
            "config",
            f'{option} "{path}": cannot be written; name a file in a folder that exists',
        )


def write_json(path: str, value: dict) -> None:
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    check_writable("--json", path)
    Path(path).write_text(text, encoding="utf-8")
