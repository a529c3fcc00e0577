"""Two packages, one direction: the library imports torch alone, the laboratory imports both."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tricouple
import tricouple_lab

SOURCES = Path(tricouple.__file__).parents[1]
PACKAGE = SOURCES / "tricouple"
LAB = SOURCES / "tricouple_lab"
LIBRARY = sorted(PACKAGE.rglob("*.py"))
# Adapters import the libraries that they adapt to.
CORE = [path for path in LIBRARY if PACKAGE / "adapters" not in path.parents]


def imported_names(path: Path, tree: ast.AST | None = None) -> set[str]:
    """Every module a file imports, at the top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(tree or ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = path.relative_to(SOURCES).with_suffix("").parts[: -node.level or None]
            module = ".".join([*(base if node.level else ()), *filter(None, [node.module])])
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def roots(names: set[str]) -> set[str]:
    """The packages of modules."""
    return {name.partition(".")[0] for name in names}


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCES))


@pytest.mark.parametrize("path", CORE, ids=relative)
def test_core_imports_torch_alone(path):
    allowed = {"torch", "tricouple", "tricouple_lab"}  # the next test is about the last
    assert roots(imported_names(path)) - set(sys.stdlib_module_names) <= allowed


def without_load_encoder(path: Path) -> ast.Module:
    """A file without what may name the laboratory: ``load_encoder`` and imports for types."""

    def named(node: ast.stmt) -> bool:
        function = isinstance(node, ast.FunctionDef) and node.name == "load_encoder"
        types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        return path == PACKAGE / "__init__.py" and (function or types)

    body = [node for node in ast.parse(path.read_text()).body if not named(node)]
    return ast.Module(body, [])


@pytest.mark.parametrize("path", LIBRARY, ids=relative)
def test_library_does_not_import_the_laboratory_except_in_load_encoder(path):
    tree = without_load_encoder(path)
    assert "tricouple_lab" not in roots(imported_names(path, tree))
    texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    assert not {text for text in texts if str(text).startswith("tricouple_lab")}  # import_module


@pytest.mark.parametrize("path", sorted((PACKAGE / "losses").glob("*.py")), ids=lambda p: p.name)
def test_losses_ask_the_engine_and_not_the_engine_room(path):
    names = imported_names(path)
    assert not {name for name in names if name.startswith("tricouple.ot.sweeps")}


# What each part may know beside itself, the library and the shared files; nothing goes in a circle.
ARROWS = {
    "data": set(),
    "models": set(),
    "evaluation": {"data"},
    "training": {"data"},
    "conf": {"data"},
    "report": set(),
    "experiments": {"data", "models", "evaluation", "training", "conf", "report"},
}
SHARED = {"files", "names", "options", "provenance"}


def parts_imported_by(package: Path, *parts: str) -> dict[str, set[str]]:
    """Which other parts of a package the files of some parts import, by file."""
    found: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package)
        own = name.with_suffix("").parts[0]
        if own in parts:
            ours = (n for n in imported_names(path) if n.startswith(f"{package.name}."))
            found[str(name)] = {n.split(".")[1] for n in ours} - {own}
    assert found
    return found


@pytest.mark.parametrize("part", ARROWS)
def test_arrows_go_one_way(part):
    for name, known in parts_imported_by(LAB, part).items():
        assert known <= ARROWS[part] | SHARED, name


def test_the_report_reads_files_and_only_its_command_knows_the_options():
    for name, parts in parts_imported_by(LAB, "report").items():
        options = {"options"} if name == "report/command.py" else set()
        assert parts <= {"files", "names"} | options, name
        assert not roots(imported_names(LAB / name)) & {"torch", "tricouple"}, name


@pytest.mark.parametrize("package", [PACKAGE, LAB], ids=relative)
def test_no_part_of_a_package_is_in_a_cycle(package):
    parts = {path.stem for path in package.iterdir() if path.suffix in ("", ".py")} - {"__init__"}
    graph = {
        part: set().union(*parts_imported_by(package, part).values()) & parts
        for part in parts
        if (package / f"{part}.py").exists() or any((package / part).glob("*.py"))
    }
    while leaves := {part for part, imported in graph.items() if not imported}:
        graph = {part: rest - leaves for part, rest in graph.items() if part not in leaves}
    assert graph == {}


# What the laboratory may import from the library beside the names of ``tricouple.__all__``.
PUBLIC = (
    "__version__", "adapters", "checks", "geometry", "losses.base.ContrastiveLoss", "ot.compiled",
    "ot.sinkhorn", "ot.triplet_sinkhorn", "shaping", "torchvision_ops",
)  # fmt: skip
# What is measured here are internals: the terms of the log-sigmoid kernel and their error.
INSIDE = LAB / "experiments/verify/quadrature.py"


def is_public(name: str) -> bool:
    allowed = {f"tricouple.{known}" for known in (*PUBLIC, *tricouple.__all__)} - {"tricouple.ot"}
    # ``from tricouple.ot import sinkhorn`` imports the module on the way.
    on_the_way = any(f"{known}.".startswith(f"{name}.") for known in allowed)
    below = any(f"{name}.".startswith(f"{known}.") for known in allowed)
    return on_the_way or below


@pytest.mark.parametrize("path", sorted(LAB.rglob("*.py")), ids=relative)
def test_laboratory_imports_public_names_of_the_library_alone(path):
    ours = {name for name in imported_names(path) if name.partition(".")[0] == "tricouple"}
    inside = {name for name in ours if not is_public(name)}
    assert bool(inside) == (path == INSIDE), inside


def test_core_was_found():
    names = set(map(relative, CORE))
    assert {"tricouple/geometry.py", "tricouple/losses/neg_mmiot.py"} <= names
    assert "tricouple.losses.neg_mmiot.NegMMIOT" in imported_names(PACKAGE / "losses/__init__.py")
    assert "tricouple_lab" in roots(imported_names(PACKAGE / "__init__.py"))
    assert not any(name.startswith("tricouple/adapters") for name in names)


EVERY = """
import importlib, sys
import torch
loaded = set(sys.modules)
for name in {modules}:
    importlib.import_module(name)
print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - loaded}}))
"""


def test_every_module_of_the_core_is_imported_beside_torch_alone():
    parts = [path.relative_to(SOURCES).with_suffix("").parts for path in CORE]
    modules = [".".join(p).removesuffix(".__init__") for p in parts]
    assert len(modules) > 20
    code = EVERY.format(modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Modules of torch that it imports late bring their own packages; none is named by ours.
    known = {"tricouple", "torch"} | set(sys.stdlib_module_names)
    assert set(done.stdout.split()) - known == set()


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


# --- the one name of the library that comes from the laboratory -----------------------------------


def outcome(code: str) -> str:
    """What a new interpreter prints, which has torch and the library but no Hydra."""
    hidden = "import sys; sys.modules['hydra'] = sys.modules['omegaconf'] = None\n"
    command = [sys.executable, "-c", hidden + code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_load_encoder_imports_the_laboratory_when_it_is_called():
    code = "import tricouple; tricouple.load_encoder; print('tricouple_lab' in sys.modules)"
    assert outcome(code) == "False"


@pytest.mark.parametrize("package", ["tricouple", "tricouple_lab"])
def test_load_encoder_says_what_to_install(package):
    code = f"""
from {package} import load_encoder
try:
    load_encoder("runs/none")
except ImportError as error:
    print(error)
"""
    wanted = r"load_encoder needs (hydra|omegaconf)\S*: pip install '\.\[train\]' in a clone of \w+"
    assert re.fullmatch(wanted, outcome(code))


def test_load_encoder_says_what_to_install_where_the_laboratory_is_missing():
    code = """
import tricouple
sys.modules["tricouple_lab"] = None
try:
    tricouple.load_encoder("runs/none")
except ImportError as error:
    print(error)
"""
    wanted = r"load_encoder needs tricouple_lab\S*: pip install '\.\[train\]' in a clone of \w+"
    assert re.fullmatch(wanted, outcome(code))


def test_the_laboratory_is_imported_without_torch():
    assert outcome("import tricouple_lab; print('torch' in sys.modules)") == "False"
    assert tricouple_lab.load_encoder.__module__ == "tricouple_lab.experiments.encoder"
