"""What is packed: an sdist is the whole repository, a wheel what is imported."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACK = "from setuptools import build_meta; print(build_meta.build_{}('dist'))"
FREE_THREADED = """
import sysconfig
known = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else known(name)
"""
LEFT_OUT = (".gitignore", ".binder/", ".ci/", ".github/")  # of use in a clone alone


def sources() -> list[str]:
    """The files of the repository; of an unpacked sdist, all that were in it."""
    listed = ROOT / "src" / "tricouple.egg-info" / "SOURCES.txt"
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    else:
        found = listed.read_text()
    return [n for n in found.splitlines() if (ROOT / n).is_file() and "egg-info" not in n]


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clone")
    for name in sources():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def packed(clone: Path, kind: str, before: str = "") -> Path:
    command = [sys.executable, "-c", before + PACK.format(kind)]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return clone / "dist" / done.stdout.splitlines()[-1]


def test_an_sdist_has_every_file_of_the_repository(clone):
    with tarfile.open(packed(clone, "sdist")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {name for name in sources() if not name.startswith(LEFT_OUT)}
    assert {"tests/conftest.py", "docs/vision.md", "theory/__main__.py", "Makefile"} <= wanted
    assert wanted - names == set()


def test_a_wheel_has_what_is_imported_and_no_sources_of_c(clone, monkeypatch):
    monkeypatch.setenv("CC", "false")  # as on a machine without a compiler, and quicker
    wheel = packed(clone, "wheel")
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for suffix in ("py", "yaml", "html", "css", "md", "typed")
        for path in source.rglob(f"*.{suffix}")
    }
    assert {"tricouple/py.typed", "tricouple_lab/cli.py"} <= wanted
    assert names == wanted


COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]


@pytest.mark.skipif(
    sys.platform != "linux" or not (shutil.which(COMPILER) and shutil.which("readelf")),
    reason="needs a C compiler of Linux, and readelf",
)
def test_a_compiled_wheel_is_stripped_and_brings_no_openmp_runtime(clone, tmp_path):
    shutil.copytree(clone, tmp_path / "clone")
    project = tmp_path / "clone/pyproject.toml"
    quick = project.read_text().replace('"-O3"', '"-O0", "-g"')  # a minute less than with -O3
    assert "-O0" in quick
    project.write_text(quick)
    wheel = packed(tmp_path / "clone", "wheel")
    assert "-cp311-abi3-linux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        (library,) = [name for name in archive.namelist() if ".so" in name]
        module = archive.extract(library, tmp_path)
    assert library == "tricouple/ot/_native.abi3.so"
    command = ["readelf", "--wide", "--section-headers", "--dynamic", module]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ".dynsym" in said
    assert ".debug" not in said
    assert ".symtab" not in said
    assert "Shared library: [libgomp.so" in said


@pytest.fixture
def release(tmp_path):
    """What ``make release`` writes, on a copy of the files that it writes to."""
    script = ROOT / ".ci/release.py"
    if not script.exists():
        pytest.skip("an unpacked sdist is released already")
    spec = importlib.util.spec_from_file_location("release", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("src/tricouple/__init__.py", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return module


def test_a_release_writes_its_version_and_begins_a_new_changelog(release, tmp_path):
    news = (ROOT / "CHANGELOG.md").read_text().partition("## [Unreleased]")[2].split("\n## [")[0]
    release.prepare(tmp_path, "9.1.0", "2030-01-02")
    assert '__version__ = "9.1.0"\n' in (tmp_path / "src/tricouple/__init__.py").read_text()
    log = (tmp_path / "CHANGELOG.md").read_text()
    assert f"## [Unreleased]\n\n## [9.1.0] - 2030-01-02\n\n{news.strip()}" in log
    for version, complaint in {"9.1": "three numbers", "9.0.9": "last one is 9.1.0"}.items():
        with pytest.raises(SystemExit, match=complaint):
            release.prepare(tmp_path, version, "2030-01-02")
    with pytest.raises(SystemExit, match="nothing under Unreleased"):
        release.prepare(tmp_path, "9.2.0", "2030-01-02")


def test_the_first_release_writes_the_address(release, tmp_path):
    install = "# in the folder: git clone URL && cd tricouple\n"
    project = '[project]\nname = "tricouple"\n\n[project.scripts]\n'
    (tmp_path / "docs").mkdir()
    for name, text in {"README.md": install, "docs/quickstart.md": install, "CITATION.cff": "",
                       "pyproject.toml": project}.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    for address in ("", "example.org/tricouple", "https://example.org/a b"):
        with pytest.raises(SystemExit, match="has no address of the repository yet"):
            release.publish_at(tmp_path, address)
    for _ in range(2):  # once is enough
        release.publish_at(tmp_path, address := "https://example.org/owner/tricouple")
    assert f"git clone {address} && cd tricouple" in (tmp_path / "README.md").read_text()
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"]
    assert urls == {"Repository": address, "Issues": f"{address}/issues"}
    assert (tmp_path / "CITATION.cff").read_text().count(address) == 1


def test_a_free_threaded_python_gets_a_wheel_of_its_own(clone, monkeypatch):
    monkeypatch.setenv("CC", "false")
    wheel = packed(clone, "wheel", FREE_THREADED)
    assert "abi3" not in wheel.name
