# SPDX-License-Identifier: Apache-2.0
"""`tidegate.attach`: checks what it was given, agrees with the other ranks, registers the hook."""

import math
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _core, own_policy
from .comm_state import CommState
from .engine import FEW_PROCESSORS, Engine, Link
from .errors import Error
from .handle import Bucket, Handle, average_densely
from .micro_batches import MicroBatch, micro_batches
from .policies import Policy, parse
from .staging import Staging

DEFAULT_TIMEOUT = 300.0  # seconds; must exceed the slowest collective that is still healthy
DEPTH = 2
TRACE_MB = 1024  # of some hundred thousand steps
REGISTERED = "_tidegate_registered"  # an attribute of the model: the state of its hook
LEAST_TRACE_MB = 1  # 16 parts; a step of a large model takes some tens of kilobytes


class _Registered:
    """The state of the hook DDP keeps for good; who answers it may change."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.handle: Handle | None = None


class DisabledHandle:
    """What attach returns under TIDEGATE_DISABLE=1: a handle that does nothing. `tidegate.save`
    still stores what the user gives it."""

    disabled = True
    attached = True

    def __init__(self, group: dist.ProcessGroup | None, label: str) -> None:
        self.label = label
        self._group = group
        alone = not dist.is_initialized()  # a model that is not even distributed
        self.rank = 0 if alone else dist.get_rank(group)
        self.ranks = 1 if alone else dist.get_world_size(group)

    def stats(self) -> dict:
        return {"steps": 0, "disabled": True}

    def log(self, *, step: int | None = None, **figures: float) -> None:
        pass

    def end_epoch(self) -> None:
        pass

    def micro_batches(self, loader: Iterable, scheduler: Any = None) -> Iterator[MicroBatch]:
        """Every batch a step."""
        del scheduler
        return micro_batches(loader, lambda: 1)

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict, strict: bool = True) -> None:
        pass

    def mean_state_dict(self) -> dict:
        return {}

    def flush(self) -> bool:
        return False

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def detach(self) -> None:
        pass

    def hook(self, bucket: Bucket) -> torch.futures.Future:
        return average_densely(bucket, self._group)

    def _gather(self, value: Any, what: str = "") -> list:
        del what
        if self.ranks == 1:
            return [value]
        values: list = [None] * self.ranks
        dist.all_gather_object(values, value, group=self._group)
        return values

    def _state(self) -> None:
        return None


AnyHandle = Handle | DisabledHandle


def _tidegate_hook(
    state: _Registered, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    if state.handle is None:  # the ranks could not agree on one
        return average_densely(bucket, state.group)
    return state.handle.hook(bucket)


def attach(
    model: DistributedDataParallel | CommState,
    optimizer: torch.optim.Optimizer,
    *,
    policy: Any = "auto",
    method: str | None = None,
    ratio: float | None = None,
    rank: int | None = None,
    bits: int | None = None,
    route: str = "auto",
    scaler: torch.amp.GradScaler | None = None,
    timeout: float | None = None,
    exclude: str | Iterable[str] = (),
    trace: str | os.PathLike[str] | None = None,
    trace_mb: float | None = TRACE_MB,
    horizon: int | None = None,
    label: str = "",
    seed: int = 0,
    experimental_cuda: bool = False,
    calibrate: bool | None = None,
) -> AnyHandle:
    """Averages the gradients of a DDP model through Tidegate from the next backward on.

    Every rank of the model calls this, in the same order and with the same arguments.

    model      a DistributedDataParallel on the CPU; only models without a hook of their own
    optimizer  the optimizer that steps it; policies hear when its learning rates drop
    policy     "auto", the default, decides by what it measures; "fixed" takes one method
               throughout; others are "schedule:levels=..." or "schedule:file=...", "accordion:...",
               "accordion-batch:...", "gravac:...", "flexible:..." and "replay:file=...": see
               `tidegate policies`. Or an object of tidegate.policies, or a function of your own
               (docs/POLICIES.md)
    method     for policy="fixed", as are ratio, rank, bits and route: one of `tidegate methods`,
               such as dense, fp16, bf16, topk, powersgd, int8
    ratio      share of the elements that is sent, in (0, 1], for methods that have one
    rank       of the matrices that are sent, from 1 to 8, for methods that have one
    bits       per value that is sent, for methods that let one choose; the method's own by default
    route      how contributions come together; "auto" = the cheapest the method can take
    scaler     the GradScaler, if there is one
    timeout    seconds after which a collective is given up (300)
    exclude    glob patterns of parameter names that stay dense, such as "*.bias"
    trace      a file for the trace, written by rank 0; with "{rank}" in its name, by every rank
    trace_mb   megabytes that the trace may take (1024): it is written in parts, of which the oldest
               are removed; None = no limit
    horizon    how many steps the job will take, if that is known: policy "auto" can be told to let
               less wait towards the end, because what waits then never arrives (auto:ending=0.01)
    label      tells handles of one process apart
    seed       of the random numbers that methods draw (randomk, qsgd, terngrad, powersgd's first Q,
               samples of the others): the same seed, the same bits; the same on all ranks
    experimental_cuda
               True takes a model on a CUDA device: its buckets are copied to pinned host memory
               and back. Written, but never run on a GPU
    calibrate  True measures the network first (1 s at 1 Gbit/s, 3 s at 100 Mbit/s), so that routes
               go by price from the first step on; False never does. By default only policies that
               act on what they measure do
    """
    if os.environ.get("TIDEGATE_DISABLE") == "1":
        print("tidegate: TIDEGATE_DISABLE=1, gradients are left to DDP", file=sys.stderr)
        return DisabledHandle(getattr(model, "process_group", None), label)
    return _attach(
        model,
        optimizer,
        policy=policy,
        fixed={"method": method, "ratio": ratio, "rank": rank, "bits": bits, "route": route},
        scaler=scaler,
        timeout=timeout,
        exclude=exclude,
        trace=trace,
        trace_mb=trace_mb,
        label=label,
        experimental_cuda=experimental_cuda,
        calibrate=calibrate,
        horizon=horizon,
        seed=seed,
    )


def _attach(
    model: DistributedDataParallel | CommState,
    optimizer: torch.optim.Optimizer,
    *,
    policy: Any,
    fixed: dict,
    scaler: torch.amp.GradScaler | None = None,
    timeout: float | None = None,
    exclude: str | Iterable[str] = (),
    trace: str | os.PathLike[str] | None = None,
    trace_mb: float | None = TRACE_MB,
    label: str = "",
    link: Link | None = None,
    experimental_cuda: bool = False,
    calibrate: bool | None = None,
    horizon: int | None = None,
    seed: int = 0,
) -> Handle:
    """attach, and on an emulated link if one is described."""
    if not isinstance(model, DistributedDataParallel | CommState):
        raise Error(
            "config",
            f"attach needs a model wrapped in DistributedDataParallel, not {type(model).__name__}; "
            "wrap it first: model = DDP(model)",
        )
    engine = Engine(model.process_group, _seconds(timeout), link)
    # From here on a mistake of one rank is told to all, so that none is left waiting.
    try:
        session, mistake, scale = None, None, None
        try:
            device = _check_model(model, experimental_cuda)
            _check_optimizer(optimizer)
            staging = Staging(device) if device.type != "cpu" else None
            chosen = _resolve_policy(policy, fixed, optimizer, horizon)
            own = chosen.adapters(1)[0]
            compared = own is not None and own.wants_comparison and engine.ranks > 1
            patterns = _patterns(exclude)
            if not isinstance(label, str):
                raise Error("config", f'label {label!r}: must be a text, such as "critic"')
            scale = _scale_of(scaler)
            session = _core.Session(
                engine.rank,
                engine.ranks,
                chosen.name,
                chosen.options,
                exclude=patterns,
                depth=DEPTH,
                label=label,
                trace=_trace_path(trace, engine.rank),
                trace_bytes=_trace_bytes(trace_mb),
                emulated=engine.link.description if engine.link else "",
                threads=_threads(),
                hosts=engine.hosts,
                own=own,
                seed=_seed(seed),
                processors=engine.processors if engine.processors <= FEW_PROCESSORS else 0,
            )
            registered = _register(model)
        except Error as error:
            mistake = (error.kind, str(error))
        except Exception as error:  # whatever it is, nobody may be left waiting
            mistake = ("config", str(error) or type(error).__name__)
        settings = ""
        if session is not None:
            settings = f"{session.fingerprint()}; calibrate {calibrate}; compared {compared}"
        _agree(engine, mistake, settings, model, scale)
        assert session is not None, "a rank without one is mistaken, and all have heard of it"
        if engine.rank == 0:  # one rank's warning is enough
            _warn_of_idle(patterns, model)
        if session.may_go_by_host():
            engine.form_host_groups()
        if session.reacts() if calibrate is None else calibrate:
            session.start_from(engine.calibrate().network)
        if session.needs_speeds() and engine.ranks > 1:  # alone, nothing is compressed
            session.set_speeds(_slowest(engine.gather_objects(_core.measure_speeds())))
        if engine.ranks > 1:
            engine.form_group_of_asides()
        handle = Handle(model, session, engine, scaler, optimizer, label, staging)
        if compared:
            own.compare = _forgetful(handle.compare_answers)
        registered.handle = handle
    except BaseException:
        engine.close()
        raise
    return handle


def _forgetful(method: Callable) -> Callable:
    """Calls a method of an object that it does not keep alive."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        target = reference()
        assert target is not None, "its own thread calls it"
        return target(*arguments)

    return call


def _seconds(timeout: float | None) -> float:
    try:
        seconds = DEFAULT_TIMEOUT if timeout is None else float(timeout)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < 1e6:
        raise Error("config", f"timeout {timeout}: must be a number of seconds above 0")
    return seconds


def _check_model(
    model: DistributedDataParallel | CommState, experimental_cuda: bool
) -> torch.device:
    """Where the model is."""
    trained = [p for p in model.module.parameters() if p.requires_grad]
    if not trained:
        raise Error("config", "no parameter of the model requires a gradient: nothing to average")
    devices: set[torch.device] = {p.device for p in trained}
    kinds = ", ".join(sorted({device.type for device in devices}))
    known = {"cpu", "cuda"} if experimental_cuda else {"cpu"}
    if len(devices) > 1 or not {device.type for device in devices} <= known:
        raise Error(
            "unsupported",
            f"parameters on {kinds}: this version averages on the CPU only; a model on one CUDA "
            "device can be tried with experimental_cuda=True, which was never run on a GPU",
        )
    registered = getattr(model, REGISTERED, None)
    if registered is not None and registered.handle is not None and registered.handle.attached:
        raise Error(
            "config",
            "this model already has a Tidegate handle; call its detach() before attaching again",
        )
    return devices.pop()


def _check_optimizer(optimizer: object) -> None:
    if not isinstance(getattr(optimizer, "param_groups", None), list):
        raise Error(
            "config",
            f"attach needs the optimizer that steps the model, not {type(optimizer).__name__}: "
            "policies hear from it when learning rates drop",
        )


def _scale_of(scaler: object) -> float | None:
    if scaler is None:
        return None
    try:
        return float(scaler.get_scale())  # type: ignore[attr-defined]
    except AttributeError:
        raise Error(
            "config",
            f"scaler {scaler!r}: must be the torch.amp.GradScaler that scales the loss, or None",
        ) from None


def _patterns(exclude: str | Iterable[str]) -> list[str]:
    listed = [exclude] if isinstance(exclude, str) else exclude
    patterns = list(listed) if isinstance(listed, Iterable) else [listed]
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise Error(
            "config",
            f"exclude {exclude!r}: must be patterns of parameter names, such as "
            '"*.bias" or ["embedding.*", "*.bias"]',
        )
    return patterns


def _warn_of_idle(patterns: list[str], model: DistributedDataParallel | CommState) -> None:
    """A name with a mistake in it would be compressed, and nobody would know."""
    names = [name for name, _ in model.module.named_parameters()]
    idle = [pattern for pattern in patterns if not any(fnmatchcase(n, pattern) for n in names)]
    if idle:
        warnings.warn(
            f"tidegate: exclude {', '.join(map(repr, idle))} matches no parameter of the model, so "
            f"it keeps nothing dense. Names are such as {', '.join(map(repr, names[:3]))}",
            stacklevel=4,
        )


def _register(model: DistributedDataParallel | CommState) -> _Registered:
    """The state of the model's hook; DDP takes a hook only once."""
    registered: _Registered | None = getattr(model, REGISTERED, None)
    if registered is not None:
        return registered
    registered = _Registered(model.process_group)
    try:
        model.register_comm_hook(registered, _tidegate_hook)
    except RuntimeError as error:
        raise Error(
            "config",
            f"DDP refuses the hook ({error}); a model can have only one communication hook: attach "
            "before other hooks are registered, and to a DDP without mixed_precision",
        ) from error
    setattr(model, REGISTERED, registered)
    return registered


ADAPTIVE = ("adam", "rmsprop", "adagrad", "adadelta", "lamb", "lion")
NOT_LINEAR = ("sign", "norm", "lars")  # whatever else their names say, such as SignSGD


def optimizer_family(optimizer: object) -> str:
    """What the policy "auto" asks for: whether updates are linear in the gradient. By the name of
    its class, or of the nearest one it is derived from whose name tells."""
    for kind in type(optimizer).__mro__:
        name = kind.__name__.lower()
        if any(part in name for part in ADAPTIVE):
            return "adam"
        if any(part in name for part in NOT_LINEAR):
            return "other"
        if "sgd" in name:
            return "sgd"
    return "other"


def _slowest(figures: list) -> list:
    """Of all ranks' measurements, element by element."""
    return [
        [max(values) for values in zip(*rows, strict=True)] for rows in zip(*figures, strict=True)
    ]


def _resolve_policy(
    policy: Any, fixed: dict, optimizer: object = None, horizon: int | None = None
) -> Policy:
    given = {key: value for key, value in fixed.items() if value is not None and value != "auto"}
    chosen = parse(policy) if isinstance(policy, str) else policy
    if isinstance(chosen, Policy) and ":" in chosen.name and chosen.own is None:
        chosen = parse(chosen.name)  # came as a text, from another process
    if not isinstance(chosen, Policy) and own_policy.is_own(chosen):
        chosen = Policy(own_policy.name_of(chosen), own=chosen)
    if isinstance(chosen, Policy) and chosen.name == "auto":
        told = {}
        if optimizer is not None:
            told["optimizer"] = optimizer_family(optimizer)
        if horizon is not None:
            told["horizon"] = str(_whole("horizon", horizon, "how many steps the job will take"))
        chosen = Policy("auto", {**told, **chosen.options})
    if not isinstance(chosen, Policy):
        raise Error(
            "config",
            f"policy {chosen!r} is neither a name nor an object of tidegate.policies nor a "
            "function of your own",
        )
    if chosen.own is not None:
        if given:
            raise Error("config", f'{", ".join(given)}: these arguments go with policy="fixed"')
        return chosen
    known = [row["name"] for row in _core.policies()]
    if chosen.name not in known:
        raise Error("config", f'unknown policy "{chosen.name}"; known: {", ".join(known)}')
    if not given:
        return chosen
    if chosen.name != "fixed":
        raise Error(
            "config",
            f'{", ".join(given)}: these arguments go with policy="fixed", not "{chosen.name}"',
        )
    if "ratio" in given:
        try:
            given["ratio"] = repr(float(given["ratio"]))
        except (TypeError, ValueError):
            raise Error(
                "config",
                f"ratio {given['ratio']!r}: must be a number above 0 and at most 1, the share of "
                "the elements that is sent, for example 0.01",
            ) from None
    return Policy("fixed", {**chosen.options, **{k: str(v) for k, v in given.items()}})


def _whole(name: str, value: Any, meaning: str) -> int:
    try:
        whole = int(value)
        if whole != float(value):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise Error("config", f"{name} {value!r}: must be a whole number, {meaning}") from None
    return whole


def _seed(value: Any) -> int:
    seed = _whole("seed", value, "from 0 to 2^63 - 1")
    if not 0 <= seed < 2**63:
        raise Error("config", f"seed {value}: must be from 0 to 2^63 - 1")
    return seed


def _threads() -> int:
    text = os.environ.get("TIDEGATE_THREADS", "1")
    if not text.isascii() or not text.isdigit():
        raise Error(
            "config",
            f'TIDEGATE_THREADS is "{text}"; set it to how many threads may compress, such as 2',
        )
    return int(text)


def _trace_path(trace: str | os.PathLike[str] | None, rank: int) -> str:
    if trace is None:
        return ""
    try:
        path = os.fsdecode(trace)
    except TypeError:
        raise Error("config", f'trace {trace!r}: must name a file, such as "run.jsonl"') from None
    if "{rank}" in path:
        return path.replace("{rank}", str(rank))
    return path if rank == 0 else ""


def _trace_bytes(megabytes: float | None) -> int:
    if megabytes is None:
        return 0
    if not isinstance(megabytes, int | float) or not LEAST_TRACE_MB <= megabytes < 1e9:
        raise Error(
            "config",
            f"trace_mb {megabytes!r}: must be a number of megabytes, {LEAST_TRACE_MB} or more, or "
            "None for no limit",
        )
    return int(1e6 * megabytes)


def _agree(
    engine: Engine,
    mistake: tuple[str, str] | None,
    fingerprint: str,
    model: DistributedDataParallel | CommState,
    scale: float | None,
) -> None:
    """Raises the same error on every rank if any rank is mistaken or differs from the others."""
    table = [(name, tuple(p.shape), str(p.dtype)) for name, p in model.module.named_parameters()]
    mine = {
        "settings": fingerprint,
        "parameters": table,
        "versions": f"tidegate {version('tidegate')}; torch {torch.__version__}",
        "loss scale": scale,
        "timeout": engine.timeout,
    }
    everyone = engine.gather_objects((mistake, mine))
    mistaken = [(rank, said[0]) for rank, said in enumerate(everyone) if said[0]]
    if mistaken:
        ranks = ", ".join(str(rank) for rank, _ in mistaken)
        kind, text = mistaken[0][1]
        prefix = "" if len(mistaken) == engine.ranks else f"rank {ranks}: "
        raise Error(kind, prefix + text)
    for what in mine:
        _compare(what, [said[1].get(what) for said in everyone])


def _compare(what: str, values: list) -> None:
    usual = max(values, key=values.count)  # the first of those that most ranks have
    odd = [rank for rank, value in enumerate(values) if value != usual]
    if not odd:
        return
    who, whose = f"rank {odd[0]}", f"rank {values.index(usual)}"
    several = f"ranks {', '.join(map(str, odd))} have" if len(odd) > 1 else f"{who} has"
    raise Error(
        "config",
        f"{several} other {what} than {whose}: {f'{who} ' if len(odd) > 1 else ''}"
        f"{_difference(values[odd[0]], usual)}; every rank must attach the same model with the "
        "same arguments, and run the same versions",
    )


def _difference(theirs: Any, ours: Any) -> str:
    if isinstance(ours, list):
        only = [entry for entry in theirs if entry not in ours][:1]
        missing = [entry for entry in ours if entry not in theirs][:1]
        return f"{only} instead of {missing}" if only or missing else "the same in another order"
    if isinstance(ours, str):
        their_parts, our_parts = theirs.split("; "), ours.split("; ")
        if len(their_parts) == len(our_parts):  # only what differs
            pairs = [pair for pair in zip(their_parts, our_parts, strict=True) if len({*pair}) > 1]
            theirs, ours = ("; ".join(part) for part in zip(*pairs, strict=True))
    return f"[{theirs}] instead of [{ours}]"
