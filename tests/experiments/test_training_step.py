"""The benchmark of whole training steps: every loss on the same network, its target checked."""

import json

import pytest
import torch

from tricouple import cli
from tricouple.experiments.bench import clip_step, training_step
from tricouple.experiments.bench.clip_step import ClipStepPlan, clip_steps
from tricouple.experiments.bench.training_step import LOSSES, StepPlan, StepTime
from tricouple.models.encoders import build_encoder

TINY = StepPlan(backbone="test_resnet", batch_size=16, image_size=8, rounds=2)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_with_any_loss_trains_the_network(loss):
    encoder = build_encoder(TINY.backbone, channels=3, image_size=8, head_dim=TINY.classes)
    before = encoder.head.weight.detach().clone()
    training_step.make_steps(TINY, encoder)[loss]()
    assert not torch.equal(before, encoder.head.weight)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_clip_step_with_any_loss_trains_both_encoders(loss, monkeypatch):
    built = []
    real = clip_step.build_model
    monkeypatch.setattr(clip_step, "build_model", lambda c: built.append(real(c)) or built[-1])
    step = clip_steps(ClipStepPlan.quick(), LOSSES)[loss]
    (model,) = built
    parts = model.visual.attnpool.c_proj.weight, model.text_projection
    before = [part.detach().clone() for part in parts]
    step()
    assert not any(torch.equal(old, new) for old, new in zip(before, parts, strict=True))


@pytest.mark.parametrize("plan", [TINY, ClipStepPlan.quick()], ids=["vision", "clip"])
def test_ratios_are_to_the_baseline(plan):
    times = {time.loss: time for time in training_step.measure_steps(plan)}
    assert times["InfoNCE"].ratio == 1
    assert times["NegMMIOT"].ratio == times["NegMMIOT"].best / times["InfoNCE"].best
    assert all(0 < time.best <= time.median for time in times.values())


@pytest.mark.parametrize(("ratio", "met"), [(1.049, True), (1.051, False)])
def test_the_target_is_met_or_missed(ratio, met):
    times = [StepTime("InfoNCE", 1.0, 1.0, 1.0), StepTime("NegMMIOT", ratio, ratio, ratio)]
    claim = training_step.step_claim(times, StepPlan())
    assert claim.met is met
    assert f"{ratio:.3f}×" in claim.text


@pytest.mark.parametrize("kind", [[], ["clip"]])
@pytest.mark.parametrize(("ratio", "code"), [(1.0, 0), (2.0, 1)])
def test_bench_writes_the_times_and_fails_if_the_target_is_missed(
    ratio, code, kind, tmp_path, capsys, monkeypatch
):
    times = [StepTime("InfoNCE", 1.0, 1.0, 1.0), StepTime("NegMMIOT", ratio, ratio, ratio)]
    monkeypatch.setattr(training_step, "measure_steps", lambda plan, on_turn: times)
    out = tmp_path / "step.json"
    assert cli.main(["bench", "--training-step", *kind, "--rounds", "3", "--out", str(out)]) == code
    written = json.loads(out.read_text())
    assert written["plan"]["rounds"] == 3
    assert written["times"][1]["ratio"] == ratio
    assert written["provenance"]["versions"]["timm"]
    shown = capsys.readouterr().out
    assert "at most 1.05×" in shown
    assert ("CLIP (small) step of 64" if kind else "resnet18 step of 256") in shown
