"""The benchmark of whole training steps: every loss on the same network, its target checked."""

import json

import pytest
import torch

from tricouple import cli
from tricouple.experiments.efficiency import training_step
from tricouple.experiments.efficiency.training_step import LOSSES, StepPlan, StepTime
from tricouple.models.encoders import build_encoder

TINY = StepPlan(backbone="test_resnet", batch_size=16, image_size=8, rounds=2)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_with_any_loss_trains_the_network(loss):
    encoder = build_encoder(TINY.backbone, channels=3, image_size=8, head_dim=TINY.classes)
    before = encoder.head.weight.detach().clone()
    training_step.make_steps(TINY, encoder)[loss]()
    assert not torch.equal(before, encoder.head.weight)


def test_ratios_are_to_the_baseline():
    times = {time.loss: time for time in training_step.measure_steps(TINY)}
    assert times["InfoNCE"].ratio == 1
    assert times["NegMMIOT"].ratio == times["NegMMIOT"].best / times["InfoNCE"].best
    assert all(0 < time.best <= time.median for time in times.values())


@pytest.mark.parametrize(("ratio", "met"), [(1.049, True), (1.051, False)])
def test_the_target_is_met_or_missed(ratio, met):
    times = [StepTime("InfoNCE", 1.0, 1.0, 1.0), StepTime("NegMMIOT", ratio, ratio, ratio)]
    claim = training_step.step_claim(times, StepPlan())
    assert claim.met is met
    assert f"{ratio:.3f}×" in claim.text


@pytest.mark.parametrize(("ratio", "code"), [(1.0, 0), (2.0, 1)])
def test_bench_writes_the_times_and_fails_if_the_target_is_missed(
    ratio, code, tmp_path, capsys, monkeypatch
):
    times = [StepTime("InfoNCE", 1.0, 1.0, 1.0), StepTime("NegMMIOT", ratio, ratio, ratio)]
    monkeypatch.setattr(training_step, "measure_steps", lambda plan, on_turn: times)
    out = tmp_path / "step.json"
    assert cli.main(["bench", "--training-step", "--rounds", "3", "--out", str(out)]) == code
    written = json.loads(out.read_text())
    assert written["plan"]["rounds"] == 3
    assert written["times"][1]["ratio"] == ratio
    assert written["provenance"]["versions"]["timm"]
    assert "at most 1.05×" in capsys.readouterr().out
