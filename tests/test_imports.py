"""Two packages, one direction: the library imports torch alone, tricouple_lab both."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest

import tricouple
from processes import python

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
    """A file without what may name tricouple_lab: ``load_encoder`` and imports for types."""

    def named(node: ast.stmt) -> bool:
        function = isinstance(node, ast.FunctionDef) and node.name == "load_encoder"
        types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        return path == PACKAGE / "__init__.py" and (function or types)

    body = [node for node in ast.parse(path.read_text()).body if not named(node)]
    return ast.Module(body, [])


@pytest.mark.parametrize("path", LIBRARY, ids=relative)
def test_library_does_not_import_tricouple_lab_except_in_load_encoder(path):
    tree = without_load_encoder(path)
    assert "tricouple_lab" not in roots(imported_names(path, tree))
    texts = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    assert not {text for text in texts if str(text).startswith("tricouple_lab")}  # import_module


@pytest.mark.parametrize("path", sorted((PACKAGE / "losses").glob("*.py")), ids=lambda p: p.name)
def test_losses_leave_the_primitive_to_solver_and_forms(path):
    primitive = {"native", "rows", "scaling_torch"}
    assert primitive <= {other.stem for other in (PACKAGE / "ot").glob("*.py")}
    assert not imported_names(path) & {f"tricouple.ot.{name}" for name in primitive}


@pytest.mark.parametrize("package", [PACKAGE, LAB], ids=relative)
def test_no_module_of_a_package_is_in_a_cycle(package):
    files = [path for path in package.rglob("*.py") if path.name != "__init__.py"]
    modules = {".".join(path.relative_to(SOURCES).with_suffix("").parts): path for path in files}
    graph = {}
    for name, path in modules.items():
        tree = ast.parse(path.read_text())
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        graph[name] = imported_names(path, ast.Module(top, [])) & modules.keys() - {name}
    while leaves := {name for name, imported in graph.items() if not imported}:
        graph = {name: rest - leaves for name, rest in graph.items() if name not in leaves}
    assert graph == {}


# What tricouple_lab may import from the library beside the names of ``tricouple.__all__``.
PUBLIC = (
    "__version__", "adapters", "losses.base.ContrastiveLoss", "ot.compiled", "ot.sinkhorn",
    "ot.triplet_sinkhorn", "torchvision_ops.declare_missing",
)  # fmt: skip


def is_public(name: str) -> bool:
    allowed = {f"tricouple.{known}" for known in (*PUBLIC, *tricouple.__all__)} - {"tricouple.ot"}
    # ``from tricouple.ot import sinkhorn`` imports the module on the way.
    on_the_way = any(f"{known}.".startswith(f"{name}.") for known in allowed)
    below = any(f"{name}.".startswith(f"{known}.") for known in allowed)
    return on_the_way or below


@pytest.mark.parametrize("path", sorted(LAB.rglob("*.py")), ids=relative)
def test_tricouple_lab_imports_public_names_of_the_library_alone(path):
    ours = {name for name in imported_names(path) if name.partition(".")[0] == "tricouple"}
    assert {name for name in ours if not is_public(name)} == set()


def test_core_was_found():
    names = set(map(relative, CORE))
    assert {"tricouple/geometry.py", "tricouple/losses/neg_mmiot.py"} <= names
    assert "tricouple.losses.neg_mmiot.NegMMIOT" in imported_names(PACKAGE / "losses/__init__.py")
    assert "tricouple_lab" in roots(imported_names(PACKAGE / "__init__.py"))
    assert not any(name.startswith("tricouple/adapters") for name in names)


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
    cache = {"PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("bytecode"))}
    own = cache | {"PYTHONDONTWRITEBYTECODE": ""}
    return [json.loads(python("-c", FRESH, **own).stdout) for _ in range(2)]


def test_import_is_fast_loads_no_package_and_leaves_global_settings_alone(fresh_import):
    packages = set(fresh_import[0]["packages"])
    assert packages - set(sys.stdlib_module_names) == {"tricouple"} | packages & {"torch"}
    # 0.05 s on a machine that needs two for torch: as a part of that, on every machine.
    assert fresh_import[-1]["seconds"] < 0.15 * fresh_import[-1]["of torch"]
    assert fresh_import[0]["before"] == fresh_import[0]["after"]


# --- the one name of the library of tricouple_lab -------------------------------------------------


def outcome(code: str, *hidden: str) -> str:
    """What a new interpreter prints that lacks some packages."""
    hide = f"import sys; sys.modules.update(dict.fromkeys({hidden!r}))"
    return python("-c", f"{hide}\n{code}").stdout.strip()


def test_every_public_name_may_be_the_first_that_is_used():
    script = """import os, torch, tricouple
for name in sorted({*tricouple.__all__} - {"load_encoder"}):
    child = os.fork()
    if child == 0:
        os._exit(getattr(tricouple, name) is None)
    assert os.waitpid(child, 0)[1] == 0, name"""
    python("-c", script)  # asserts that it ends well


def test_load_encoder_imports_tricouple_lab_when_it_is_called():
    code = "import tricouple; tricouple.load_encoder; print('tricouple_lab' in sys.modules)"
    assert outcome(code) == "False"


@pytest.mark.parametrize("hidden", ["omegaconf", "tricouple_lab"])
def test_load_encoder_names_what_to_install(hidden):
    code = """
import tricouple
try:
    tricouple.load_encoder("runs/none")
except ImportError as error:
    print(error)
"""
    wanted = rf"load_encoder needs {hidden}\S*: pip install 'tricouple\[train\]'"
    assert re.fullmatch(wanted, outcome(code, hidden))
