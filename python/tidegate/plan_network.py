# SPDX-License-Identifier: Apache-2.0
"""The network that a plan is made for: as the user describes it, or as a probe measured it."""

import json
from argparse import Namespace
from pathlib import Path

from . import _core
from .errors import Error

MOST_RANKS = 1024
MOST = 1e12  # Mbit/s or milliseconds
ORIGINS = ("given", "derived", "measured")


def describe_link(arguments: Namespace) -> dict:
    if arguments.ranks is None:
        raise Error("config", "--ranks: how many ranks share the work? Write for example --ranks 8")
    rate, latency = _core.parse_link(arguments.link)
    hosts = arguments.hosts if arguments.hosts is not None else arguments.ranks
    return checked(
        {
            "ranks": arguments.ranks,
            "hosts": hosts,
            "fits": dict.fromkeys(_core.PRICED_COLLECTIVES, (rate, latency, "given", 0.0)),
            "text": f"{arguments.link}, as given",
        }
    )


def read_probe(arguments: Namespace) -> dict:
    """What `tidegate probe --json` wrote."""
    path = arguments.probe

    def wrong(text: str) -> Error:
        return Error("config", f'--probe "{path}": {text}; write one with tidegate probe --json')

    try:
        probe = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise wrong(f"cannot be read ({error})") from None
    except json.JSONDecodeError as error:
        raise wrong(f"is no JSON ({error})") from None
    if not isinstance(probe, dict) or probe.get("kind") != "probe":
        raise wrong('is not the result of a probe ("kind": "probe" is missing)')
    if probe.get("v") != 1:
        raise wrong(f"has version {probe.get('v')!r}, and this release reads version 1")
    for key in ("ranks", "hosts"):
        value = probe.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise wrong(f'"{key}" is {value!r}, not a whole number from 1 on')
        asked = getattr(arguments, key)
        if asked is not None and asked != value:
            raise Error(
                "config",
                f'--{key} {asked}: the network of "{path}" was measured with {value} {key}; leave '
                f"--{key} out",
            )
    measured = probe.get("network")
    if not isinstance(measured, dict):
        raise wrong('"network" is missing')
    fits = {}
    for name in _core.PRICED_COLLECTIVES:
        fit = measured.get(name)
        if not isinstance(fit, dict):
            raise wrong(f'"network" says nothing of "{name}"')
        mbit, latency = (number(fit.get(key)) for key in ("mbit", "latency_ms"))
        if mbit is None or latency is None or mbit == 0 or fit.get("origin") not in ORIGINS:
            raise wrong(
                f'"{name}" is {json.dumps(fit)[:120]}; "mbit" above 0, "latency_ms" from 0 on and '
                f'"origin" ({", ".join(ORIGINS)}) are needed'
            )
        hidden = number(fit.get("hidden", 0))
        if hidden is None or hidden > 1:
            raise wrong(f'"hidden" of "{name}" is {fit["hidden"]!r}, not a share from 0 to 1')
        fits[name] = (mbit * 1e6 / 8, latency / 1e3, fit["origin"], hidden)
    rate, latency, origin, _ = fits["all-reduce"]
    return checked(
        {
            "ranks": probe["ranks"],
            "hosts": probe["hosts"],
            "fits": fits,
            "text": f"{bandwidth(rate * 8 / 1e6)}, {latency * 1e3:.3g} ms by all-reduce, {origin}",
        }
    )


def number(value: object) -> float | None:
    """A number from 0 on that a network can have, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MOST else None


def checked(network: dict) -> dict:
    ranks, hosts = network["ranks"], network["hosts"]
    if not 1 <= ranks <= MOST_RANKS:
        raise Error("config", f"--ranks {ranks}: must be between 1 and {MOST_RANKS}")
    if not 1 <= hosts <= ranks:
        raise Error("config", f"--hosts {hosts}: must be between 1 and the {ranks} ranks")
    return network


def goes_by_host(network: dict) -> bool:
    """Whether sums inside hosts save anything: on one host its inside is the network."""
    return 1 < network["hosts"] < network["ranks"]


def bandwidth(mbit: float | str) -> str:
    if isinstance(mbit, str):
        return mbit
    return f"{mbit / 1e3:.3g} Gbit/s" if mbit >= 1e3 else f"{mbit:.3g} Mbit/s"
