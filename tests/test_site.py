"""The documentation: all its code runs, every page is reached, every picture is there."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import tricouple
from tricouple_lab import cli
from tricouple_lab.config.compose import compose, expand
from tricouple_lab.names import LOSSES

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if not {"assets", "_build"} & {*path.parts})
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
FENCE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
SECTIONS = ("Inputs", "Recommendations", "Relations to other losses", "Forces", "Parameters")
# A sketch of the call; what tests/adapters run; what needs a trained run (tests/lab).
ELSEWHERE = {"adapters.md", "vision.md", "clip.md", "text.md"}
# Notebooks are shortened.
SMALL = {
    "first-loss": {"steps=200": "steps=5", "range(50)": "range(2)"},
    "images": {"epochs=15": "epochs=1"},
    "plans": {"n_iters=20_000": "n_iters=200"},
    "sentences": {"range(600)": "range(120)", "num_train_epochs=3": "num_train_epochs=1"},
}


def run(blocks: list[str], name: str) -> dict[str, object]:
    """The names that code leaves, which runs from top to bottom."""
    names: dict[str, object] = {"__name__": name}
    for block in blocks:
        exec(compile(block, name, "exec"), names)
    return names


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if FENCE.search(p.read_text()) and p.name not in ELSEWHERE],
    ids=lambda page: page.stem,
)
def test_python_on_a_page_runs_from_top_to_bottom(page: Path) -> None:
    assert len(run(FENCE.findall(page.read_text()), page.stem)) > 2


def test_the_pictures_of_all_losses_are_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(DOCS)
    import forces

    for name in ("BATCHES", "ANCHORS", "DESCENT"):
        monkeypatch.setattr(forces, name, 1)
    forces.main(tmp_path)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    used = re.compile(r"\]\(\.\./assets/([\w-]+\.png)\)")
    shown = {
        name for page in (DOCS / "losses").glob("*.md") for name in used.findall(page.read_text())
    }
    assert {*drawn} == shown


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The titles of pictures that were drawn instead of shown."""
    import matplotlib.pyplot as plt

    drawn: list[str] = []

    def show() -> None:
        axes = plt.gcf().axes
        assert all(axis.has_data() or not axis.axison for axis in axes)
        drawn.append(axes[0].get_title())
        plt.close()

    monkeypatch.setattr(plt, "show", show)
    return drawn


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(
    notebook: Path, pictures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as one of them does, for itself alone
    cells = [
        "".join(cell["source"])
        for cell in json.loads(notebook.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    for long, short in SMALL[notebook.stem].items():
        assert any(long in cell for cell in cells)
        cells = [cell.replace(long, short) for cell in cells]
    assert "tc" in run(cells, notebook.stem)


def commands(pages: list[Path]) -> list[list[str]]:
    """The words of all lines in blocks that start with our command."""
    blocks = re.compile(r"^```[^\n`]*\n(.*?)^```$", re.M | re.S)
    texts = [block for page in pages for block in blocks.findall(page.read_text())]
    lines = "\n".join(texts).replace("\\\n", " ").splitlines()
    ours = [line for line in lines if line.startswith("tricouple ")]
    assert not [line for line in ours if re.match(r"[^'#]*\(", line)]  # a shell needs quotes there
    return [shlex.split(line, comments=True)[1:] for line in ours]


def test_commands_on_pages_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    found = commands([*PAGES, DOCS.parent / "README.md"])
    assert len(found) > 30
    options = {}
    for name in {name for name, *_ in found}:
        with pytest.raises(SystemExit) as stopped:
            cli.main([name, "--help"])
        assert stopped.value.code == 0
        options[name] = re.findall(r"(?<![\w-])--?[a-z][\w-]*", capsys.readouterr().out)
    for name, *words in found:
        given = [word for word in words if word.startswith("-")]
        assert {*given} <= {*options[name]}, (name, words)
        if name in ("train", "clip", "text"):
            chosen = [after for word, after in pairwise(words) if word == "--choose"]
            settings = [word for word in words if "=" in word and word not in chosen]
            for combination in expand(settings) if "-m" in words else [settings]:
                assert compose(cli.COMMANDS[name].wraps, combination)


def test_notebooks_are_kept_with_small_outputs() -> None:
    for notebook in NOTEBOOKS:
        text = notebook.read_text()
        assert any(cell.get("outputs") for cell in json.loads(text)["cells"]), notebook.name
        assert len(text) < 300_000, notebook.name


def test_every_loss_has_a_page_with_formula_inputs_advice_forces_and_parameters() -> None:
    pages = {path: path.read_text() for path in (DOCS / "losses").glob("*.md")}
    del pages[DOCS / "losses" / "index.md"]
    for key, loss in LOSSES.items():
        if loss.class_name and not hasattr(tricouple, loss.class_name):
            continue  # of a study
        target = (
            f"tricouple.{loss.class_name}" if loss.class_name else "tricouple_lab.models.byol.BYOL"
        )
        (own,) = [text for text in pages.values() if f".. autoclass:: {target}\n" in text]
        if key == "iot_uniformity":  # a variant, on the page of its class
            assert f"`loss={key}`" in own
    for path, text in pages.items():
        for part in ("$$", *(f"## {title}" for title in SECTIONS), "](../assets/"):
            assert part in text, (path.name, part)


def test_the_reference_has_every_public_name() -> None:
    text = (DOCS / "api.md").read_text()
    names = [f"tricouple.{name}" for name in tricouple.__all__ if name != "ot"]
    names += [f"tricouple.ot.{name}" for name in tricouple.ot.__all__]
    for path in (DOCS.parent / "src/tricouple/adapters").glob("[a-z]*.py"):
        found = re.findall(r"^class ([A-Z]\w+)", path.read_text(), re.M)
        names += [f"tricouple.adapters.{path.stem}.{name}" for name in found]
    assert len(names) > 20
    assert [name for name in names if f":: {name}\n" not in text] == []


def test_every_page_is_in_a_table_of_contents() -> None:
    reached = {DOCS / "index"}
    for page in PAGES:
        for toc in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.S):
            words = [line for line in toc.splitlines() if line and not line.startswith(":")]
            reached |= {(page.parent / word).resolve() for word in words}
    pages = {page.resolve().with_suffix("") for page in (*PAGES, *NOTEBOOKS)}
    assert pages == {page.resolve() for page in reached}


def anchors(page: Path) -> set[str]:
    """The names of a page's headings down to the third level, as MyST makes them."""
    headings = re.findall(r"^#{1,3} (.+)$", page.read_text(), re.M)
    plain = [re.sub(r"`|\[(.*?)\]\(.*?\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def test_links_between_pages_and_to_pictures_lead_somewhere() -> None:
    link = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)")
    root = DOCS.parent
    more = (root / name for name in ("README.md", "CONTRIBUTING.md", "results/README.md"))
    broken = []
    for page in (*PAGES, *NOTEBOOKS, *more):
        for target, anchor in link.findall(page.read_text()):
            there = page.parent / target if target else page
            # The host's pages beside the repository: a workflow is there if its file is.
            if target.startswith("../../actions/"):
                there = root / ".github" / target.split("/actions/")[1].split("/badge")[0]
            if not there.exists() or (anchor and anchor not in anchors(there)):
                broken.append(f"{page.name}: {target}#{anchor}")
    assert broken == []


def test_addresses_are_whole() -> None:
    texts = [page.read_text() for page in (*PAGES, *NOTEBOOKS)]
    addresses = [found for text in texts for found in re.findall(r"\]\((\w+:[^)]*)\)", text)]
    assert addresses
    for address in addresses:
        parts = urlsplit(address)
        assert parts.scheme == "https", address
        assert re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc), address
