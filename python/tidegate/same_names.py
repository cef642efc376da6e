# SPDX-License-Identifier: Apache-2.0
"""Parameters that are the same although their names are not: wrappers prefix words to them."""

from collections import Counter
from collections.abc import Iterable

# Of DDP and its like, torch.compile, activation checkpointing, FSDP.
WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


def bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def same_names(saved: Iterable[str], present: Iterable[str]) -> dict[str, str]:
    """For saved names, the present name of the same parameter, where there is one."""
    saved, present = list(saved), list(present)
    by_bare = unambiguous(present)
    bare_once = unambiguous(saved)
    found = {name: name for name in set(saved) & set(present)}
    for shortened, name in bare_once.items():
        if name not in found and shortened in by_bare and by_bare[shortened] not in found:
            found[name] = by_bare[shortened]
    return found


def unambiguous(names: list[str]) -> dict[str, str]:
    """Names by what is left of them without wrappers, where that is left of one only."""
    count = Counter(map(bare, names))
    return {bare(name): name for name in names if count[bare(name)] == 1}
