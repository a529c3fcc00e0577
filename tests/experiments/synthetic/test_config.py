"""Settings are the paper's by default, and impossible ones are refused before any work."""

from dataclasses import replace

import pytest

from tricouple_lab.experiments.synthetic.config import (
    AXES,
    LINEAR,
    LOG_SIGMOID,
    TAKES,
    RunConfig,
    main_cells,
    map_cells,
)


def test_defaults_are_those_of_the_paper():
    config = RunConfig()
    assert (config.n_classes, config.per_class, config.data_dim, config.kappa) == (10, 50, 100, 5)
    assert (config.epsilon, config.temperature, config.n_iters) == (0.5, 1.0, 10)
    assert config.learning_rate == 8e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_classes": 1}, "n_classes is 1: 2 or more"),
        ({"n_classes": 102}, "data_dim is 100: the means of 102 classes need 101 or more"),
        ({"batch_per_class": 51}, "batch_per_class is 51, but a class has only 50 samples"),
        ({"batch_per_class": 1}, "batch_per_class is 1: 2 or more make a positive pair"),
        ({"carry_over": 1.1}, "carry_over must be between 0 and 1, got 1.1"),
        ({"carry_over": -0.5}, "carry_over must be between 0 and 1, got -0.5"),
        ({"epsilon": 0.0}, "epsilon must be finite and > 0"),
        ({"temperature": float("nan")}, "temperature must be finite and > 0"),
        ({"n_iters": 0}, "n_iters must be at least 1"),
        ({"method": "simclr"}, "method must be one of 'neg_mmiot'"),
        ({"shaping": "hinge"}, "shaping must be one of 'linear', 'log_sigmoid', got 'hinge'"),
        ({"method": "byol"}, "shaping is 'linear', but byol has none"),
        ({"imbalance": 26.0, "sampler": "shuffled"}, "it can be 1 to 25"),
        ({"imbalance": 2.0}, "class-uniform batches would hide it"),
    ],
)
def test_impossible_settings_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**change)


@pytest.mark.parametrize(
    ("method", "expected"),
    [("neg_mmiot", 8.0), ("pushpull", 8.0), ("iot", 2.0), ("infonce", 4.0), ("byol", None)],
)
def test_sharpness_is_what_the_loss_knows_of_its_settings(method, expected):
    shaping = "linear" if method in ("neg_mmiot", "pushpull") else None
    config = RunConfig(method, shaping, epsilon=0.5, temperature=0.25)
    assert config.sharpness == config.flat()["sharpness"] == expected


def test_main_part_compares_all_methods_at_each_k_and_seed():
    cells = main_cells(RunConfig(), [10, 20, 50], range(3))
    assert len(cells) == len({cell.id for cell in cells}) == 3 * 3 * 9
    assert {cell.config.method for cell in cells} == set(TAKES)
    assert {cell.part for cell in cells} == {"main"}
    # Whoever stops early has whole comparisons.
    assert {cell.config.seed for cell in cells[:27]} == {0}
    # The same budget for all, but for the τ of InfoNCE, which alone makes its sharpness.
    budgets = [cell.config.shared() | {"temperature": None} for cell in cells]
    assert all(budget == budgets[0] for budget in budgets)


def test_info_nce_runs_at_the_sharpness_of_the_others_too():
    cells = main_cells(RunConfig(epsilon=0.5, temperature=1.0), [10], [0])
    found = {cell.id: cell.config.sharpness for cell in cells if cell.config.method == "infonce"}
    assert found == {"infonce-K10-seed0": 1.0, "infonce-c2-K10-seed0": 2.0}
    others = {cell.config.sharpness for cell in cells if cell.config.method == "neg_mmiot"}
    assert others == {2.0}


def test_maps_change_one_setting_at_a_time():
    base = RunConfig()
    cells = map_cells(base)
    assert len(cells) == len({cell.id for cell in cells})
    assert {cell.part for cell in cells} == {f"maps/{axis.name}" for axis in AXES}
    for cell in cells:
        axis = cell.part.removeprefix("maps/")
        changed = {key for key, value in base.shared().items()
                   if cell.config.shared()[key] != value}  # fmt: skip
        allowed = {"sampler"} if axis == "imbalance" else set()
        if cell.config.method == "infonce":  # once more at the sharpness of the others
            allowed |= {"temperature"}
        assert changed <= {axis} | allowed
        assert "/" not in cell.id


def test_each_axis_has_the_methods_that_depend_on_it_and_the_middle_of_the_study():
    base = RunConfig()
    shared = base.shared()
    for axis in AXES:
        assert shared[axis.name] in axis.values
        assert set(axis.variants) <= set(LINEAR + LOG_SIGMOID)
        for method, shaping in axis.variants:
            if axis.name in ("epsilon", "temperature") and shaping != "log_sigmoid":
                config = replace(base, method=method, shaping=shaping)
                assert replace(config, **{axis.name: 0.123}).sharpness != config.sharpness


def test_maps_leave_out_imbalances_that_small_classes_do_not_allow():
    found = {c.config.imbalance for c in map_cells(RunConfig(per_class=10))}
    assert found == {1.0, 2.0, 5.0}
