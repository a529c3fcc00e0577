"""``training.chunk_size``: the numbers of an unchunked run, in the memory of a chunk."""

import pytest
import torch

from tricouple_lab.config.compose import compose
from tricouple_lab.names import UserError
from tricouple_lab.runs.execute import build, execute
from tricouple_lab.tasks.base import Step, task_of

IMAGES = ("data=digits", "data.image_size=8", "data.train_size=96", "data.test_size=60",
          "backbone.width=4", "backbone.head_dim=16", "logger=none")  # fmt: skip
CASES = {
    "images": (*IMAGES, "setting=scl"),
    "views": (*IMAGES, "setting=ucl"),
    "clip": ("scale=smoke", "data.train_size=48", "training.learn_sharpness=true"),
    "words": ("scale=smoke", "data=phrases", "model=words", "model.train=all"),
    "mixture": ("scale=smoke",),
}
TASKS = {"views": "images", "words": "text"}


@pytest.mark.parametrize("case", CASES)
def test_a_chunked_step_has_the_gradient_of_the_batch(case):
    """Batch normalisation in evaluation mode, because in training it is that of a chunk."""
    task, found = task_of(TASKS.get(case, case)), []
    for words in ((), ("training.chunk_size=7",)):
        config = compose(task.name, [*CASES[case], *words])
        data = task.load(config)
        torch.manual_seed(0)
        model = build(task, config, data).eval()
        calls = []
        model.encoder.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        rows = range(0, len(data.train), len(data.train) // 40)[:40]
        loss = task.loss(config, model, data.train.__getitems__(rows), Step(1, 0, 10))
        loss.backward()
        slopes = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        found.append((loss.detach(), torch.cat(slopes)))
        chunks = {"views": 12, "clip": 0}.get(case, 6)  # of clip, two methods are called
        assert len(calls) == (2 * chunks if words else min(chunks, 1))
    (value, slope), (chunked, theirs) = found
    torch.testing.assert_close(chunked, value)
    assert (theirs - slope).norm() < 1e-5 * slope.norm()


def test_a_chunked_run_has_the_curves_of_an_unchunked_one(tmp_path):
    curves = []
    for size in ("null", "16"):
        words = [*CASES["words"], "training.epochs=2", "logger=none", "evaluation.figures=false"]
        words += [f"training.chunk_size={size}", f"run={tmp_path / size}"]
        record = execute(task_of("text"), compose("text", words), say=lambda _: None)
        curves.append([row["loss"] for row in record.curves[1:]])
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    assert curves[0][1] < curves[0][0]


def test_chunks_of_byol_are_refused(tmp_path):
    words = ("setting=ucl", "training.chunk_size=8", "loss=byol", f"run={tmp_path}")
    config = compose("images", [*IMAGES, *words])
    with pytest.raises(UserError, match=r"training\.chunk_size"):
        execute(task_of("images"), config, say=lambda _: None)
