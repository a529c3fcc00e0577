"""How many files a reader of one call meets."""

import sys
from pathlib import Path

import torch

import tricouple
from tricouple import NegMMIOT

PACKAGE = str(Path(tricouple.__file__).parent)
LONGEST = 1_740


def test_a_step_of_neg_mmiot_enters_at_most_ten_files():
    criterion, labels = NegMMIOT(), torch.arange(256) // 4
    embeddings = torch.randn(256, 16, requires_grad=True)
    criterion(embeddings, labels).backward()  # what is done once is done
    entered = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            entered.add(frame.f_code.co_filename.removeprefix(PACKAGE))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        criterion(embeddings, labels).backward()
    finally:
        sys.setprofile(before)
    assert any(name.endswith("neg_mmiot.py") for name in entered)
    assert len(entered) <= 10, sorted(entered)


# What a newcomer reads from a linear loss to the primitive, on every device; it is to be 1,500.
STORY = (
    *("losses/neg_mmiot.py", "losses/coupled.py", "ot/solver.py", "ot/forms.py"),
    *("ot/rows.py", "ot/scaling.py", "ot/scaling_torch.py", "ot/scores.py"),
)


def test_the_linear_story_keeps_its_length():
    texts = [Path(PACKAGE, name).read_text(encoding="utf-8") for name in STORY]
    assert sum(len(text.splitlines()) for text in texts) <= LONGEST
