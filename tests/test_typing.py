"""An editor and mypy find typos in calls of a loss."""

import re
from pathlib import Path

from mypy import api

import tricouple

CONFIG = """
[mypy]
strict = true
follow_imports = skip
[mypy-tricouple.*]
follow_imports = silent
"""
RIGHT = """
import tricouple as tc

tc.NegMMIOT(gradient="implicit", marginals="classes", memory="streamed", check="shapes")
tc.PushPull(sharpness=10, negatives="all", empty="zero")
tc.BothDirections(tc.InfoNCE(sharpness="paper"), learn=True)
tc.InvaSpread(variant="published")
tc.MultiModalIOT(edges=[("image", "text"), ("text", "audio")], gradient="envelope")
tc.NegMMIOT(shaping=lambda t: -t, group="world")
"""
WRONG = """
import tricouple as tc

tc.NegMMIOT(gradient="implict")  # gradient
tc.NegMMIOT(marginals="classs")  # marginals
tc.PushPull(negatives="every")  # negatives
tc.IOT(memory="stream")  # memory
tc.InfoNCE(empty="nothing")  # empty
tc.InfoNCE(check="none")  # check
tc.DBOT(variant="paper")  # variant
tc.MultiModalIOT(gradient="implicit")  # gradient
tc.NegMMIOT(sharpness="10")  # sharpness
tc.NegMMIOT(tempersture=0.1)  # tempersture
tc.BothDirections(tc.InfoNCE(), learnt=True)  # learnt
"""


def test_typos_are_found_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "mypy.ini").write_text(CONFIG)
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.setenv("MYPYPATH", str(Path(tricouple.__file__).parents[1]))
    files = [str(tmp_path / name) for name in ("right.py", "wrong.py")]
    settings = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", str(tmp_path / "cache")]
    said, errors, _ = api.run([*settings, *files])
    assert not errors
    found = re.findall(r"(right|wrong)\.py:(\d+): error: (.*)", said)
    typos = {number: line for number, line in enumerate(WRONG.splitlines(), 1) if "#" in line}
    assert [(name, int(number)) for name, number, _ in found] == [("wrong", n) for n in typos], said
    for (*_, message), line in zip(found, typos.values(), strict=True):
        assert line.rpartition("# ")[2] in message
