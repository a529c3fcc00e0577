"""The core imports torch alone, imports fast, and knows nothing of the experiments."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tricouple

PACKAGE = Path(tricouple.__file__).parent
# Parts of the package that use the core; the command line is the one door to them.
EXPERIMENTS = {
    "adapters", "bench", "benchmarks", "cli", "conf", "data", "demo", "evaluation", "experiments",
    "models", "report", "training",
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
    assert roots - set(sys.stdlib_module_names) <= {"torch", "tricouple"}


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_core_does_not_import_experiments(path):
    parts = {name.split(".")[1] for name in imported_names(path) if name.startswith("tricouple.")}
    assert not parts & EXPERIMENTS


def test_core_was_found():
    names = {str(path.relative_to(PACKAGE)) for path in CORE}
    assert {"geometry.py", "ot/pairwise.py", "losses/neg_mmiot.py"} <= names
    assert "tricouple.losses.neg_mmiot.NegMMIOT" in imported_names(PACKAGE / "losses/__init__.py")
    assert not any(name.startswith(("experiments", "cli")) for name in names)


def in_fresh_interpreter(code: str):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout)


def test_import_loads_no_other_package_than_torch_does():
    new = in_fresh_interpreter(
        "import json, sys, torch\n"
        "before = set(sys.modules)\n"
        "import tricouple\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    assert set(new) - set(sys.stdlib_module_names) <= {"tricouple", "torch"}
    assert "tricouple" in new


def test_import_is_fast():
    code = (
        "import json, time, torch\n"
        "start = time.perf_counter()\n"
        "import tricouple\n"
        "print(json.dumps(time.perf_counter() - start))"
    )
    # The product stands for 0.05 s; the best of three, since other tests share the machine.
    assert min(in_fresh_interpreter(code) for _ in range(3)) < 0.05


def test_import_leaves_global_settings_alone():
    state = (
        "(str(torch.get_default_dtype()), torch.get_num_threads(), torch.is_grad_enabled(), "
        "torch.initial_seed(), len(warnings.filters))"
    )
    before, after = in_fresh_interpreter(
        f"import json, warnings, torch\nbefore = {state}\nimport tricouple\n"
        f"print(json.dumps([before, {state}]))"
    )
    assert before == after
