# SPDX-License-Identifier: Apache-2.0
"""What users install: the source distribution, the wheel that is built from it, and that wheel in
an environment that has torch and numpy and nothing else."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LIMIT = 900  # seconds: all of the C++ is compiled
VERSION = re.search(r"project\(tidegate VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[
    1
]
# Part of every Linux system, by the name that a program asks for.
SYSTEM = r"linux-vdso|ld-linux\S*|lib(c|m|stdc\+\+|gcc_s|pthread|dl|rt)"

pytestmark = [pytest.mark.all, pytest.mark.timeout(LIMIT + 60)]


def run(*command, fails: bool = False, **options) -> subprocess.CompletedProcess:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=LIMIT, **options
    )
    assert bool(done.returncode) == fails, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def tracked(*folders: str) -> set[str]:
    listed = run("git", "ls-files", "-z", *folders, cwd=ROOT).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).exists()}


# --- what is made, once for all tests ---


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    """Made in a clone in which more lies about than belongs to the project."""
    if not (ROOT / ".git").exists():
        pytest.skip("which files belong to the project only its repository tells")
    pytest.importorskip("build", reason="tools/setup.sh --all installs it")
    clone = tmp_path_factory.mktemp("clone")
    for name in tracked():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name)
    for stray in (
        "build/release/libtidegate.a",
        ".venv/lib/python3.11/site-packages/torch/__init__.py",
        ".mypy_cache/cache.json",
        "report.html",
        "tidegate-demo.jsonl",
        "docs/picture.png",
        "tests/fuzz/corpus/wire_decode/crash-1",
        "tidegate/base/notes.txt",
        "python/tidegate/__pycache__/cli.cpython-311.pyc",
        "python/tidegate/_core.cpython-311-x86_64-linux-gnu.so",
    ):
        (clone / stray).parent.mkdir(parents=True, exist_ok=True)
        (clone / stray).write_text("stray")
    made = tmp_path_factory.mktemp("sdist")
    told = run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "-o", made, clone)
    assert "WARNING" not in told.stdout + told.stderr
    return made / f"tidegate-{VERSION}.tar.gz"


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"),
        # Sooner done; how fast it is plays no part here.
        "--config-settings=cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O0",
        *("--wheel-dir", made, sdist),
        cwd=made,
    )
    (found,) = made.glob("*.whl")
    return found


def closure(names: list[str]) -> dict[str, metadata.Distribution]:
    """Packages, and all that they say they need here."""
    found: dict[str, metadata.Distribution] = {}
    while names:
        name = names.pop().lower().replace("_", "-")
        if name in found:
            continue
        found[name] = metadata.distribution(name)
        needed = map(Requirement, found[name].requires or [])
        names += [r.name for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory) -> Path:
    """An environment with the wheel, torch and numpy, and with what these two need. Those are links
    to what is installed here."""
    home = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(home, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    there = closure(["torch", "numpy"])
    assert not {"rich", "plotly", "matplotlib", "scipy"} & set(there)
    for distribution in there.values():
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            (site / top).symlink_to(distribution.locate_file(top))
    python = home / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel)
    return home


def in_fresh(fresh: Path, *command, **options) -> subprocess.CompletedProcess:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LD_", "TIDEGATE"))}
    environment = {**kept, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return run(fresh / "bin" / command[0], *command[1:], env=environment, cwd=fresh, **options)


# --- the source distribution ---


def test_source_distribution_holds_what_is_built_and_nothing_else(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = tracked("tidegate", "python", "cmake")
    wanted |= {name for name in tracked("benchmarks") if name.endswith((".h", ".cpp"))}
    wanted |= {"CMakeLists.txt", "pyproject.toml", "README.md", "CHANGELOG.md"}
    wanted |= {"LICENSE", "LICENSE-THIRD-PARTY", "PKG-INFO"}
    assert names == wanted


def test_library_can_be_configured_from_the_source_distribution(sdist, tmp_path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    cmake = os.environ.get("CMAKE_EXECUTABLE", "cmake")
    run(cmake, "-S", tmp_path / f"tidegate-{VERSION}", "-B", tmp_path / "build")
    assert (tmp_path / "build/tidegate.pc").exists()


# --- the wheel ---


def test_wheel_holds_the_package_and_what_it_links(wheel):
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"tidegate-{VERSION}-{tag}-{tag}-linux_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = archive.read(f"tidegate-{VERSION}.dist-info/METADATA").decode()
    suffix = next(name.partition(".")[2] for name in names if name.startswith("tidegate/_core.c"))
    wanted = {name.removeprefix("python/") for name in tracked("python/tidegate")}
    wanted |= {"tidegate/_core.pyi", "tidegate/_bench.pyi", "tidegate/libhwy.so.1"}
    wanted |= {f"tidegate/_core.{suffix}", f"tidegate/_bench.{suffix}"}
    files = ("METADATA", "WHEEL", "RECORD", "entry_points.txt")
    licences = ("licenses/LICENSE", "licenses/LICENSE-THIRD-PARTY")
    wanted |= {f"tidegate-{VERSION}.dist-info/{name}" for name in (*files, *licences)}
    assert names == wanted
    assert {"tidegate/py.typed", "tidegate/report_page.html"} <= names
    assert f"\nVersion: {VERSION}\n" in about


def test_stubs_know_every_name_of_the_modules(fresh):
    for module in ("_core", "_bench"):
        listing = f"from tidegate import {module}; print(*dir({module}))"
        names = in_fresh(fresh, "python", "-c", listing).stdout.split()
        (stub,) = fresh.glob(f"lib/python*/site-packages/tidegate/{module}.pyi")
        told = set()
        for node in ast.parse(stub.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                told.add(node.name)
            elif isinstance(node, ast.AnnAssign):
                told.add(node.target.id)
        public = {name for name in names if not name.startswith("_")}
        assert public and public == told


def test_everything_that_is_linked_is_in_the_wheel_or_part_of_the_system(fresh):
    (package,) = fresh.glob("lib/python*/site-packages/tidegate")
    libraries = sorted(package.glob("*.so*"))
    assert len(libraries) == 3
    for library in libraries:
        for line in in_fresh_ldd(library):
            name, _, place = line.partition(" => ")
            inside = Path(place.rpartition(" (")[0]).parent == package
            system = re.fullmatch(rf"({SYSTEM})(\.so)?(\.\d+)*", Path(name.split(" (")[0]).name)
            assert inside or system, f"{library.name}: {line}"


def in_fresh_ldd(library: Path) -> list[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LD_")}
    return [line.strip() for line in run("ldd", library, env=environment).stdout.splitlines()]


# --- the wheel where only torch and numpy are ---


def test_import_needs_torch_and_numpy_alone(fresh):
    code = "import tidegate, sys; print(tidegate.__version__, tidegate.__file__)"
    version, file = in_fresh(fresh, "python", "-c", code).stdout.split()
    assert version == VERSION
    assert Path(file).is_relative_to(fresh)


def test_command_tells_its_version_and_what_is_missing(fresh):
    assert in_fresh(fresh, "tidegate", "--version").stdout == f"tidegate {VERSION}\n"
    assert '"topk"' in in_fresh(fresh, "tidegate", "methods", "--json", "-").stdout
    told = in_fresh(fresh, "tidegate", "methods", fails=True).stderr
    assert told == "tidegate methods: rich is missing; pip install rich\n"


TRAINING = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import tidegate

dist.init_process_group("gloo", init_method="file://{store}", rank=0, world_size=1)
model = DDP(torch.nn.Linear(100, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
handle = tidegate.attach(model, optimizer, policy="fixed", method="topk", ratio=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 100)).square().mean().backward()
    optimizer.step()
print(handle.stats()["steps"], handle.stats()["backlog"] > 0)
print({{line.split()[-1] for line in open("/proc/self/maps") if "libhwy" in line}})
handle.detach()
dist.destroy_process_group()
"""


def test_a_job_of_one_rank_trains(fresh, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAINING.format(store=tmp_path / "store"))
    steps, highway = in_fresh(fresh, "python", script).stdout.splitlines()
    assert steps == "5 True"
    (library,) = ast.literal_eval(highway)  # the wheel's, though the system may have one, too
    assert Path(library).is_relative_to(fresh.resolve())


TYPED = """
import torch
import tidegate
from tidegate import _core
from torch.nn.parallel import DistributedDataParallel as DDP

def begin(model: DDP, optimizer: torch.optim.Optimizer) -> int:
    handle = tidegate.attach(model, optimizer, ratio=0.01)
    tidegate.attach(model, optimizer, ratio="much")
    return _core.Network(2, 2, "1gbit,1ms").describe() + handle.rank
"""


def test_type_checkers_see_the_types(fresh, tmp_path):
    script = tmp_path / "typed.py"
    script.write_text(TYPED)
    cache = ("--cache-dir", tmp_path / "cache", "--config-file", os.devnull)
    python = ("--python-executable", fresh / "bin/python")
    told = run(sys.executable, "-m", "mypy", "--strict", *cache, *python, script, fails=True).stdout
    mistakes = [line.partition(": error: ") for line in told.splitlines() if ": error: " in line]
    assert list(dict.fromkeys(place.rpartition(":")[2] for place, _, _ in mistakes)) == [
        "9",
        "10",
    ], told
    assert '"ratio" to "attach" has incompatible type "str"' in mistakes[0][2]
