"""How many files one run goes through: to follow it, nobody should have to open the whole house."""

import sys
import threading
from inspect import CO_OPTIMIZED
from pathlib import Path

import tricouple
from tricouple import cli

PACKAGE = Path(tricouple.__file__).parent
# What every loss has in common with every use of it; tests of the losses count these.
CORE = (
    "ot", "losses", "relations", "checks", "distributed", "geometry", "memory", "numeric",
    "shaping",
)  # fmt: skip
WORDS = [
    "data=digits", "setting=scl", "loss=neg_mmiot", "scale=smoke", "backbone.name=test_resnet",
    "data.train_size=200", "data.image_size=8", "training.epochs=1", "evaluation.probe_epochs=2",
    "trainer.accelerator=cpu", "progress=false",
]  # fmt: skip


def test_a_training_run_passes_at_most_25_files(tmp_path, capsys):
    seen = set()

    def note(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_flags & CO_OPTIMIZED:  # functions, not bodies of classes
            seen.add(code.co_filename)

    assert cli.main(["train", *WORDS, f"runs={tmp_path / 'warm'}"]) == 0  # imports everything
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        assert cli.main(["train", *WORDS, f"runs={tmp_path / 'runs'}"]) == 0
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    files = {Path(name).relative_to(PACKAGE) for name in seen if name.startswith(str(PACKAGE))}
    walked = {str(path) for path in files if path.with_suffix("").parts[0] not in CORE}
    assert {"cli.py", "experiments/runs/run.py", "experiments/vision.py"} <= walked
    assert len(walked - {"__init__.py"}) <= 25, sorted(walked)
