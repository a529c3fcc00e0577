"""How large the code may be, so that growth is a decision, and how many files a call enters."""

import sys
from pathlib import Path

import pytest
import torch

import tricouple

ROOT = Path(__file__).parents[1]
PACKAGE = str(Path(tricouple.__file__).parent)

# Lines of some files, and of those below some folders.
LIMITS = {
    (("src/tricouple",), (".py",)): 9_085,
    (("src/tricouple",), (".c", ".h")): 1_600,
    (("src/tricouple_lab",), (".py",)): 7_500,
    (("theory", "benchmarks", "studies", "reproduce"), (".py",)): 4_500,
    (("tests",), (".py",)): 15_000,
}
# What a newcomer reads from a linear loss to the primitive, on every device; it is to be 1,500.
STORY = (
    *("losses/neg_mmiot.py", "losses/coupled.py", "ot/solver.py", "ot/forms.py"),
    *("ot/rows.py", "ot/scaling.py", "ot/scaling_torch.py", "ot/scores.py"),
)
LIMITS[tuple(f"src/tricouple/{file}" for file in STORY), (".py",)] = 1_668


# What stands beside the solver, the losses and the adapters.
TOOLS = ("caching.py", "retrieval.py", "bags.py", "losses/siglip.py")
MODALITIES = ("losses/multimodal.py", "ot/multimodal.py")


def lines(folders: tuple[str, ...], endings: tuple[str, ...]) -> int:
    files = [path for name in folders for path in ((ROOT / name), *(ROOT / name).rglob("*"))]
    sources = (path for path in files if path.suffix in endings)
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources)


@pytest.mark.parametrize(("folders", "endings"), LIMITS)
def test_folders_keep_their_budget(folders, endings):
    found = lines(folders, endings)
    assert 0 < found <= LIMITS[folders, endings], f"{folders}: {found} lines of {endings}"


def test_the_core_keeps_its_budget():
    beside = tuple(f"src/tricouple/{file}" for file in (*TOOLS, *MODALITIES))
    assert lines(("src/tricouple",), (".py",)) - lines(beside, (".py",)) <= 8_000
    assert lines(beside[len(TOOLS) :], (".py",)) <= 600


def test_a_step_of_neg_mmiot_enters_at_most_ten_files():
    criterion, labels = tricouple.NegMMIOT(), torch.arange(256) // 4
    embeddings = torch.randn(256, 16, requires_grad=True)
    criterion(embeddings, labels).backward()  # what is done once is done
    entered = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            entered.add(frame.f_code.co_filename.removeprefix(PACKAGE))

    sys.setprofile(note)
    criterion(embeddings, labels).backward()
    sys.setprofile(None)
    assert any(name.endswith("neg_mmiot.py") for name in entered)
    assert len(entered) <= 10, sorted(entered)
