"""The core imports torch alone, imports fast, and knows nothing of the experiments."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tricouple

PACKAGE = Path(tricouple.__file__).parent
# Parts of the package that use the core; the command line is the one door to them.
EXPERIMENTS = {
    "adapters", "benchmarks", "cli", "conf", "data", "evaluation", "experiments",
    "files", "models", "names", "options", "provenance", "report", "training",
}  # fmt: skip
CORE = [
    path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).with_suffix("").parts[0] not in EXPERIMENTS | {"__main__"}
]


def imported_names(path: Path) -> set[str]:
    """Every module a file imports, at the top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = path.relative_to(PACKAGE.parent).with_suffix("").parts[: -node.level or None]
            module = ".".join([*(base if node.level else ()), *filter(None, [node.module])])
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_core_imports_torch_alone(path):
    roots = {name.partition(".")[0] for name in imported_names(path)}
    # Kernels for CUDA are loaded where Triton is installed.
    kernels = {"triton"} if path.name == "triton_sums.py" else set()
    assert roots - set(sys.stdlib_module_names) <= {"torch", "tricouple"} | kernels


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_core_does_not_import_experiments(path):
    parts = {name.split(".")[1] for name in imported_names(path) if name.startswith("tricouple.")}
    # ``load_encoder`` has its name there, and is imported on first use.
    assert not parts & EXPERIMENTS - ({"experiments"} if path == PACKAGE / "__init__.py" else set())


@pytest.mark.parametrize("path", sorted((PACKAGE / "losses").glob("*.py")), ids=lambda p: p.name)
def test_losses_ask_the_engine_and_not_the_engine_room(path):
    names = imported_names(path)
    assert not {name for name in names if name.startswith("tricouple.ot.sweeps")}


def test_halves_of_kernels_are_known_to_the_engine_alone():
    halves = "tricouple.ot.sweeps.halves"
    assert {path.name for path in CORE if halves in imported_names(path)} == {"engine.py"}


# What each part may know beside itself, the core and the shared files; nothing goes in a circle.
ARROWS = {
    "adapters": set(),
    "data": set(),
    "models": set(),
    "evaluation": {"data"},
    "training": {"data"},
    "conf": {"data"},
    "report": set(),
    "experiments": {"data", "models", "evaluation", "training", "conf", "report"},
}
SHARED = {"files", "names", "options", "provenance"}


@pytest.mark.parametrize("part", ARROWS)
def test_arrows_go_one_way(part):
    for path in (PACKAGE / part).rglob("*.py"):
        known = {n.split(".")[1] for n in imported_names(path) if n.startswith("tricouple.")}
        assert known & EXPERIMENTS <= ARROWS[part] | SHARED | {part}, path


def parts_imported_by(*parts: str) -> dict[str, set[str]]:
    """Which other parts of the package the files of some parts import, by file."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        own = name.with_suffix("").parts[0]
        if own in parts:
            ours = (n for n in imported_names(path) if n.startswith("tricouple."))
            found[str(name)] = {n.split(".")[1] for n in ours} - {own}
    assert found
    return found


def test_the_report_reads_files_and_only_its_command_knows_the_options():
    for name, parts in parts_imported_by("report").items():
        options = {"options"} if name == "report/command.py" else set()
        assert parts <= {"files", "names"} | options, name
        assert "torch" not in {n.partition(".")[0] for n in imported_names(PACKAGE / name)}, name


def test_no_part_of_the_package_is_in_a_cycle():
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix in ("", ".py")} - {"__init__"}
    graph = {
        part: set().union(*parts_imported_by(part).values()) & parts
        for part in parts
        if (PACKAGE / f"{part}.py").exists() or any((PACKAGE / part).glob("*.py"))
    }
    while leaves := {part for part, imported in graph.items() if not imported}:
        graph = {part: rest - leaves for part, rest in graph.items() if part not in leaves}
    assert graph == {}


def test_only_the_quadrature_looks_into_the_engine_room_from_outside():
    room = "tricouple.ot.sweeps"
    outside = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if PACKAGE / "ot" not in path.parents
        and any(name.startswith(room) for name in imported_names(path))
    }
    assert outside == {"experiments/verify/quadrature.py"}


def test_core_was_found():
    names = {str(path.relative_to(PACKAGE)) for path in CORE}
    assert {"geometry.py", "ot/pairwise.py", "losses/neg_mmiot.py"} <= names
    assert "tricouple.losses.neg_mmiot.NegMMIOT" in imported_names(PACKAGE / "losses/__init__.py")
    assert not any(name.startswith(("experiments", "cli")) for name in names)


FRESH = """
import gc, json, sys, time, warnings
start = time.process_time()
import torch
of_torch = time.process_time() - start

def state():
    return [str(torch.get_default_dtype()), torch.get_num_threads(), torch.is_grad_enabled(),
            torch.initial_seed(), len(warnings.filters)]

gc.freeze()  # a walk of the collector through torch's own objects is none of ours
before, loaded, start = state(), set(sys.modules), time.process_time()
import tricouple
# What is loaded on first use counts as well.
tricouple.NegMMIOT, tricouple.PushPull, tricouple.IOT, tricouple.pair_views
tricouple.ot.sinkhorn, tricouple.ot.triplet_sinkhorn, tricouple.geometry.neural_collapse
seconds = time.process_time() - start
packages = sorted({name.partition(".")[0] for name in set(sys.modules) - loaded})
found = {"seconds": seconds, "of torch": of_torch, "packages": packages}
print(json.dumps(found | {"before": before, "after": state()}))
"""


@pytest.fixture(scope="module")
def fresh_import(tmp_path_factory) -> list[dict]:
    """What `import tricouple` does after `import torch`, in two new interpreters.

    An installed package has its bytecode: the first of them writes it, whatever is set around here.
    """
    environment = {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path_factory.mktemp("bytecode"))
    command = [sys.executable, "-c", FRESH]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        for _ in range(2)
    ]
    return [json.loads(run.stdout) for run in runs]


def test_import_loads_no_other_package_than_torch_does(fresh_import):
    packages = set(fresh_import[0]["packages"])
    assert packages - set(sys.stdlib_module_names) <= {"tricouple", "torch"}
    assert "tricouple" in packages


def test_import_is_fast(fresh_import):
    # 0.05 s on a machine that needs two for torch: as a part of that, on every machine.
    assert fresh_import[-1]["seconds"] < 0.15 * fresh_import[-1]["of torch"]


def test_import_leaves_global_settings_alone(fresh_import):
    assert fresh_import[0]["before"] == fresh_import[0]["after"]
