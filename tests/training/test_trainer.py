"""The trainer passes Lightning's flags on, but for those that a run decides itself."""

import pytest

from tricouple.training.trainer import as_csv, check_flags, curves


def test_flags_of_lightning_pass():
    check_flags({"devices": 2, "strategy": "ddp", "precision": "bf16-mixed"})
    check_flags({"gradient_clip_val": 1.0})


@pytest.mark.parametrize(
    ("flag", "complaint"),
    [
        ("accumulate_grad_batches", "compares the samples of one batch"),
        ("max_epochs", "set training.epochs"),
        ("callbacks", "runs bring their own"),
        ("devcies", "is not a flag of Lightning; it has accelerator, strategy, devices"),
    ],
)
def test_other_flags_are_refused_with_the_reason(flag, complaint):
    with pytest.raises(ValueError, match=complaint) as refused:
        check_flags({flag: 2})
    assert f"trainer.{flag}" in str(refused.value)


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed_stage_2", "model_parallel"])
def test_strategies_that_take_networks_apart_are_refused(strategy):
    with pytest.raises(ValueError, match=f"strategy={strategy}: runs keep whole networks"):
        check_flags({"strategy": strategy})
    with pytest.raises(ValueError, match="strategy=ddp_spawn: use ddp"):
        check_flags({"strategy": "ddp_spawn"})


def test_curves_have_gaps_where_nothing_was_measured():
    rows = [{"step": 0, "alpha": 0.1}, {"step": 5, "loss": 1 / 3}]
    assert curves(rows) == {"step": [0, 5], "alpha": [0.1, None], "loss": [None, 1 / 3]}
    assert as_csv(rows) == f"step,alpha,loss\n0,0.1,\n5,,{1 / 3}\n"
