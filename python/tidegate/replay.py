# SPDX-License-Identifier: Apache-2.0
"""`tidegate replay`: asks a policy again what a recorded run asked it."""

import itertools
import statistics
from argparse import Namespace
from collections import defaultdict

from . import _core
from .errors import Error
from .policies import Policy
from .runs import choose_policy

MOST_ROWS = 40  # to show, unless --all is given


def run(arguments: Namespace) -> int:
    from .cli import shows, write_json

    policy = choose(arguments.policy, _core.trace_start(arguments.trace))
    result = _core.replay_trace(arguments.trace, policy.name, policy.options, policy.adapters(1)[0])
    result["policy"], result["options"] = policy.name, policy.options
    result["same_policy"] = arguments.policy is None
    result["times"] = pair_times(result["times"])
    if arguments.json:
        write_json(arguments.json, {"v": 1, **result})
    if shows(arguments):
        show(result, arguments)
    if arguments.policy is not None:
        return 0
    return 1 if result["different"] or result["different_batches"] else 0


def choose(text: str | None, start: dict) -> Policy:
    if text is not None:
        return choose_policy(text)
    if not start["own_policy"]:
        return Policy(start["policy"], start["options"])
    try:
        return choose_policy(start["policy"])
    except Error as error:
        raise Error(
            "config",
            f"the run had a policy of the user's own, {start['policy']}, which cannot be found "
            f"({error}); name it: --policy module:function",
        ) from error


def pair_times(times: list[dict]) -> list[dict]:
    """What a step took is known when the next one begins."""
    return [
        {
            "step": row["step"],
            "recorded_seconds": after["step_seconds"] or None,
            "modelled_seconds": row["modelled_seconds"],
            "repeated_modelled_seconds": row["repeated_modelled_seconds"],
        }
        for row, after in itertools.pairwise(times)
    ]


# --- for people ---


def show(result: dict, arguments: Namespace) -> None:
    decisions, steps = result["decisions"], result["steps"]
    if result["incomplete"]:
        print(result["incomplete"])
    if result["same_policy"]:
        show_repetition(result, arguments.all)
    else:
        print(
            f"What {arguments.policy} would have decided in {steps} steps, open loop: its inputs "
            "are those of the\nrecorded run, which other decisions would have changed."
        )
        for name in result.get("missing", []):
            print(f"It looks at something that the recorded run did not collect: {name}.")
        show_rows(result["rows"], arguments.all)
        print(f"{decisions - result['different']} of {decisions} decisions are the same.")
    if arguments.timings:
        show_times(result)


def show_repetition(result: dict, everything: bool) -> None:
    decisions = result["decisions"]
    if not result["different"] and not result["different_batches"]:
        print(
            f"all {decisions} decisions repeated: {result['steps']} steps, "
            f"{result['recorded_changes']} decisions that changed something"
        )
        return
    print(f"{result['different']} of {decisions} decisions were not repeated:")
    show_rows([row for row in result["rows"] if not row["same"]], everything)
    if result["different_batches"]:
        steps = result["different_batches"]
        print(f"{steps} steps with another number of batches or other learning rates.")


def show_rows(rows: list[dict], everything: bool) -> None:
    """Buckets whose rows are alike share one."""
    from .cli import show_rows as show_table
    from .explain import name_buckets

    alike: dict[tuple, list[int]] = defaultdict(list)
    for row in rows:
        key = (row["step"], row["recorded"], row["repeated"], row["repeated_reason"])
        alike[key].append(row["bucket"])
    merged = [(*key, name_buckets(buckets)) for key, buckets in alike.items()]
    shown = merged if everything else merged[:MOST_ROWS]
    show_table(
        shown,
        {
            "step": lambda row: str(row[0]),
            "buckets": lambda row: row[4].partition(" ")[2],
            "recorded": lambda row: row[1],
            "again": lambda row: row[2],
            "because": lambda row: row[3],
        },
        broken=3,
    )
    if len(shown) < len(merged):
        print(f"{len(merged) - len(shown)} more rows; --all shows them.")


def show_times(result: dict) -> None:
    columns = {
        "recorded": "recorded_seconds",
        "modelled, as recorded": "modelled_seconds",
        "modelled, as decided now": "repeated_modelled_seconds",
    }
    rows = [row for row in result["times"] if row["modelled_seconds"] and row["recorded_seconds"]]
    if not rows:
        print("No step can be modelled: the run knew neither its network nor its times.")
        return
    print(f"Median of {len(rows)} steps for which network and times were known:")
    for name, key in columns.items():
        print(f"  {name:<25} {1e3 * statistics.median(row[key] for row in rows):9.3g} ms")
    print("Modelled: from the network as it was known then; compressing as the run measured it.")
