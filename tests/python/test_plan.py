# SPDX-License-Identifier: Apache-2.0
import json
import re

import pytest

from tidegate import _core, cli, model_shapes
from tidegate.buckets import cut

LINK = ("--link", "100mbit,1ms", "--ranks", "8")
# What compressing takes is measured in two tests only: the others need not wait for it.
COMMON = ("--compute", "80ms", "--compression", "none", "--quiet")
MEASURED = ("dense by engine", "topk 0.1 in 16 bits by allgather", "int8 by owner")
NETWORK = {
    "all-reduce": {"mbit": 100, "latency_ms": 2, "hidden": 0, "origin": "measured"},
    "all-gather": {"mbit": 50, "latency_ms": 2, "hidden": 0, "origin": "measured"},
    "broadcast": {"mbit": 100, "latency_ms": 2, "hidden": 0, "origin": "derived"},
    "all-to-all": {"mbit": 100, "latency_ms": 2, "hidden": 0, "origin": "derived"},
    "send-receive": {"mbit": 100, "latency_ms": 2, "hidden": 0, "origin": "measured"},
    "swap": {"mbit": 100, "latency_ms": 2, "hidden": 0, "origin": "measured"},
}
PROBE = {"v": 1, "kind": "probe", "ranks": 4, "hosts": 2, "network": NETWORK}


def said(capsys, *argv: str) -> tuple[int, str, str]:
    code = cli.main(["plan", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def planned(capsys, *argv: str) -> dict:
    code, out, err = said(capsys, *argv, *COMMON, "--json", "-")
    assert (code, err) == (0, "")
    return json.loads(out)


def row(plan: dict, choice: str) -> dict:
    return next(row for row in plan["rows"] if row["choice"] == choice)


def write(tmp_path, name: str, content) -> str:
    file = tmp_path / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(file)


def test_a_table_of_all_that_matters_with_baselines_and_what_to_write(capsys):
    code, out, err = said(capsys, "--parameters", "25e6", *LINK, *COMMON, "--top", "5")
    assert (code, err) == (0, "")
    for text in (
        "modelled",
        "parameter server",
        "dense bf16",
        "Fastest of those that lose nothing: ",
        "tidegate.attach(model, optimizer, policy=",
        "25,000,000 parameters (taken to be square matrices",
        "8 rank(s) on 8 host(s); network: 100mbit,1ms, as given",
        "a third of it forward",
        "Compressing is taken to take no time (--compression none).",
        "How well a model learns is not",
    ):
        assert text in out
    rows = [line for line in out.splitlines() if re.search(r" (waits|nothing|is lost) +\d", line)]
    assert len(rows) == 5 + 3  # and the baselines


def test_all_shows_every_route(capsys):
    _, short, _ = said(capsys, "--parameters", "1e6", *LINK, *COMMON)
    _, full, _ = said(capsys, "--parameters", "1e6", *LINK, *COMMON, "--all")
    assert len(full.splitlines()) > len(_core.candidates()) > len(short.splitlines())
    assert re.search(r"dense +tree", full)


def test_json_has_every_candidate_fastest_first(capsys):
    plan = planned(capsys, "--parameters", "1e6", *LINK)
    assert (plan["v"], plan["kind"], plan["convergence"]) == (1, "plan", "not modelled")
    assert (plan["parameters"], plan["ranks"], plan["hosts"]) == (1_000_000, 8, 8)
    assert {row["choice"] for row in plan["rows"]} == {str(c) for c in _core.candidates()}
    steps = [row["modelled_step_seconds"] for row in plan["rows"]]
    assert steps == sorted(steps)
    assert plan["best"]["modelled_step_seconds"] == min(
        row["modelled_step_seconds"] for row in plan["rows"] if row["advisable"]
    )
    dense = row(plan, "dense by engine")
    # 2 buckets by a ring of 8: all bytes one after another, latency once at least, after forward.
    assert dense["bytes_sent"] == pytest.approx(2 * 7 / 8 * 4e6)
    assert dense["modelled_step_seconds"] > 7e6 / 12.5e6
    assert dense["break_even_fp32_mbit"] == "never"
    assert plan["baselines"]["fp32"] == dense
    assert plan["baselines"]["bf16"]["bytes_sent"] == pytest.approx(dense["bytes_sent"] / 2)
    assert plan["baselines"]["parameter_server"]["bytes_sent"] == 4e6


def test_nothing_beats_dense_where_there_is_nothing_to_send(capsys):
    link = ("--link", "100mbit,1ms", "--ranks", "1")
    code, out, _ = said(capsys, "--parameters", "1e6", *link, *COMMON)
    assert code == 0
    assert "Nothing beats dense fp32 here (modelled): leave the gradients as they are." in out
    assert "tidegate.attach" not in out


def test_a_gain_that_the_model_cannot_tell_is_no_advice(capsys):
    link = ("--link", "100gbit,1us", "--ranks", "8")
    _, out, _ = said(capsys, "--parameters", "1e5", *link, *COMMON)
    assert "Nothing beats dense fp32 here by more than this model can tell" in out
    assert "tidegate.attach" not in out


def test_compression_is_measured_once_per_process(capsys, monkeypatch):
    # Not all 180 choices: measuring each takes its time.
    some = [c for c in _core.candidates(by_host=False) if str(c) in MEASURED]
    assert len(some) == len(MEASURED)
    monkeypatch.setattr(_core, "candidates", lambda by_host: some)
    options = ("--parameters", "1e6", *LINK, "--compute", "80ms", "--quiet", "--json", "-")
    costly = json.loads(said(capsys, *options)[1])
    assert costly["compression"] == "measured"
    again = json.loads(said(capsys, *options)[1])
    assert again["rows"] == costly["rows"]
    free = planned(capsys, "--parameters", "1e6", *LINK)
    for choice in MEASURED[1:]:
        slower = row(costly, choice)["modelled_step_seconds"]
        assert slower > row(free, choice)["modelled_step_seconds"]


def test_hosts_bring_routes_by_host(capsys):
    plan = planned(capsys, "--parameters", "1e6", *LINK, "--hosts", "2")
    assert plan["hosts"] == 2
    by_host = row(plan, "dense by hosts+engine")
    assert by_host["bytes_sent"] == pytest.approx(4e6)  # a ring of two
    assert by_host["modelled_step_seconds"] < row(plan, "dense by engine")["modelled_step_seconds"]
    _, out, _ = said(capsys, "--parameters", "1e6", *LINK, "--hosts", "2", *COMMON)
    assert "what stays inside a host is taken to cost nothing" in out


def test_on_one_host_nothing_goes_by_host(capsys):
    plan = planned(capsys, "--parameters", "1e6", *LINK, "--hosts", "1")
    assert not any(row["route"].startswith("hosts") for row in plan["rows"])


def test_a_probe_describes_network_and_ranks(capsys, tmp_path):
    file = write(tmp_path, "probe.json", PROBE)
    plan = planned(capsys, "--parameters", "1e6", "--probe", file)
    assert (plan["ranks"], plan["hosts"]) == (4, 2)
    assert plan["network"] == NETWORK
    even = PROBE | {"network": NETWORK | {"all-gather": NETWORK["all-reduce"]}}
    other = planned(capsys, "--parameters", "1e6", "--probe", write(tmp_path, "even.json", even))
    choice = "int8 by allgather"  # which is sent at half the rate
    slow, fast = (row(p, choice)["modelled_step_seconds"] for p in (plan, other))
    assert slow > 1.5 * fast
    assert row(plan, "dense by engine") == row(other, "dense by engine")
    _, out, _ = said(capsys, "--parameters", "1e6", "--probe", file, "--ranks", "4", *COMMON)
    assert "network: 100 Mbit/s, 2 ms by all-reduce, measured" in out


def test_a_probe_has_what_a_plan_reads():
    fits = _core.Network(4, 2, "100mbit,2ms").fits()  # what tidegate probe writes
    assert fits.keys() == NETWORK.keys()
    assert fits["swap"] == NETWORK["swap"] | {"origin": "given"}


def without(key: str) -> dict:
    return {k: v for k, v in PROBE.items() if k != key}


def with_all_reduce(**fields) -> dict:
    return PROBE | {"network": NETWORK | {"all-reduce": NETWORK["all-reduce"] | fields}}


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ("{", "is no JSON"),
        ([], "is not the result of a probe"),
        (PROBE | {"kind": "plan"}, "is not the result of a probe"),
        (PROBE | {"v": 2}, "has version 2"),
        (without("ranks"), '"ranks" is None'),
        (PROBE | {"ranks": True}, '"ranks" is True'),
        (PROBE | {"hosts": 0}, '"hosts" is 0'),
        (PROBE | {"hosts": 5}, "between 1 and the 4 ranks"),
        (without("network"), '"network" is missing'),
        (PROBE | {"network": {"all-reduce": {}}}, '"mbit" above 0'),
        (PROBE | {"network": dict(list(NETWORK.items())[:3])}, 'says nothing of "all-to-all"'),
        (with_all_reduce(mbit=0), '"mbit" above 0'),
        (with_all_reduce(mbit=10**400), '"mbit" above 0'),
        (with_all_reduce(mbit="100"), '"mbit" above 0'),
        (with_all_reduce(latency_ms=-1), '"latency_ms" from 0 on'),
        (with_all_reduce(mbit=float("inf")), '"mbit" above 0'),
        (with_all_reduce(origin="guessed"), '"origin" (given, derived, measured)'),
    ],
)
def test_a_malformed_probe_is_told_in_one_line(capsys, tmp_path, content, advice):
    file = write(tmp_path, "probe.json", content)
    code, out, err = said(capsys, "--parameters", "1e6", "--probe", file, *COMMON)
    assert (code, out) == (2, "")
    assert err.startswith("tidegate plan: ")
    assert err.count("\n") == 1
    assert advice in err


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--link", "fast", "--ranks", "8"], "write for example 100mbit,2ms"),
        (["--link", "100mbit,1ms"], "--ranks: how many"),
        (["--link", "100mbit,1ms", "--ranks", "0"], "--ranks 0: must be between 1"),
        (["--link", "100mbit,1ms", "--ranks", "4", "--hosts", "5"], "--hosts 5: must be"),
        ([*LINK, "--compute", "80"], "write for example 30ms"),
        ([*LINK, "--compute", "0ms"], "write for example 30ms"),
        ([*LINK, "--top", "0"], "--top 0: must be 1 or more"),
        ([*LINK, "--plot", "plan.bmp"], "must end with .svg, .png, .pdf"),
        ([*LINK, "--plot", "missing/plan.svg"], "name a file in a folder that exists"),
        (["--probe", "missing.json"], "cannot be read"),
        ([*LINK, "--probe", "probe.json"], "not allowed with argument"),
        ([*LINK, "--parameters", "0.5"], "--parameters 0.5: must be 1 or more"),
        ([*LINK, "--shapes", "shapes.json"], "not allowed with argument"),
    ],
)
def test_a_bad_option_is_told_in_one_line(capsys, monkeypatch, tmp_path, options, advice):
    monkeypatch.chdir(tmp_path)
    code, out, err = said(capsys, "--parameters", "1e6", *COMMON, *options)
    assert (code, out) == (2, "")
    assert err.startswith("tidegate plan: ")
    assert err.count("\n") == 1
    assert advice in err
    assert list(tmp_path.iterdir()) == []


def test_ranks_other_than_the_probes_are_a_mistake(capsys, tmp_path):
    file = write(tmp_path, "probe.json", PROBE)
    code, _, err = said(capsys, "--parameters", "1e6", "--probe", file, "--ranks", "8", *COMMON)
    assert code == 2
    assert "was measured with 4 ranks; leave --ranks out" in err


@pytest.mark.parametrize(
    "content",
    [
        '[["conv.weight", [64, 3, 7, 7]], ["conv.bias", [64]], ["scale", []]]',
        'name,dims\nconv.weight,64x3x7x7\n\nconv.bias,64\n"scale",1\n',
    ],
)
def test_shapes_are_read_from_json_and_csv(tmp_path, content):
    layers = model_shapes.from_file(write(tmp_path, "shapes", content))
    assert layers == [("conv.weight", 9408, 64), ("conv.bias", 64, 0), ("scale", 1, 0)]


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ("", "holds no parameters"),
        ("[", "is no JSON"),
        ("[]", "holds no parameters"),
        ('[["a", [3, 0]]]', 'entry 0 is ["a", [3, 0]]'),
        ('[["a", [3]], "b"]', 'entry 1 is "b"'),
        ('[["a", [1.5]]]', 'write ["conv1.weight", [64, 3, 7, 7]]'),
        ("a,3x3\nb,3xx3\n", 'line 2: "b,3xx3"'),
        ("a,0x3\n", 'line 1: "a,0x3"'),
        ("a\n", "write conv1.weight,64x3x7x7"),
        ("a,100000x1000000\n", "too many"),
    ],
)
def test_malformed_shapes_are_told_with_their_place(capsys, tmp_path, content, advice):
    file = write(tmp_path, "shapes", content)
    code, out, err = said(capsys, "--shapes", file, *LINK, *COMMON)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert advice in err


def test_a_torch_model_is_asked_for_its_parameters(capsys, monkeypatch, tmp_path):
    write(
        tmp_path,
        "my_nets.py",
        "import torch\n"
        "def linear():\n"
        "    model = torch.nn.Linear(300, 200)\n"
        "    model.bias.requires_grad = False\n"
        "    return model\n"
        "def nothing(): return 3\n",
    )
    monkeypatch.chdir(tmp_path)
    assert model_shapes.from_model("my_nets:linear") == [("weight", 60_000, 200)]
    plan = planned(capsys, "--model", "my_nets:linear", *LINK)
    assert (plan["parameters"], plan["buckets"]) == (60_000, 1)
    for place, advice in {
        "my_nets": "write module:function",
        "my_nets:missing": "missing",
        "no_such_module:f": "no_such_module",
        "my_nets:nothing": "a torch.nn.Module is needed",
    }.items():
        code, _, err = said(capsys, "--model", place, *LINK, *COMMON)
        assert code == 2
        assert advice in err


@pytest.mark.parametrize("count", [1, 2, 7, 2**18, 2**18 + 1, 1_234_567, 25_000_000])
def test_a_number_of_parameters_becomes_matrices_of_exactly_that_number(count):
    layers = model_shapes.from_count(count)
    assert sum(elements for _, elements, _ in layers) == count
    assert len({name for name, _, _ in layers}) == len(layers)
    for _, elements, rows in layers:
        assert elements <= 1024 * 1024
        assert rows == 0 or elements % rows == 0
    buckets = cut(layers, lambda layer: 4 * layer[1])
    assert sum(len(bucket) for bucket in buckets) == len(layers)
    assert sum(elements for _, elements, _ in buckets[0]) <= 2**18  # DDP's first bucket is small


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_picture_of_steps_over_the_rate_of_the_link(capsys, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    file = tmp_path / f"plan.{suffix}"
    code, _, _ = said(capsys, "--parameters", "1e6", *LINK, *COMMON, "--plot", str(file))
    assert code == 0
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    if suffix == "svg":
        for text in (b"modelled", b"your link", b"dense fp32", b"powersgd rank 1"):
            assert text in content  # as comments beside the outlines of the letters
