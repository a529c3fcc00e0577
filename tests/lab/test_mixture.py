"""The mixture, its batches, and the demo and synthetic commands at tiny size."""

import itertools

import pytest
import torch

from tricouple_lab.cli import main
from tricouple_lab.commands import synthetic
from tricouple_lab.config.compose import compose
from tricouple_lab.data import generated
from tricouple_lab.data.generated import class_sizes, load_mixture
from tricouple_lab.names import UserError
from tricouple_lab.tasks.base import make_loss
from tricouple_lab.tasks.mixture import Mixture, outcome


def drawn(*words, seed=0):
    config = compose("mixture", ["data.n_classes=4", "training.batch_size=16", *words])
    return load_mixture(config.data, seed, config.training.batch_size)


def test_means_sum_to_zero_and_noise_outside_their_span_has_variance_kappa():
    generator = torch.Generator().manual_seed(0)
    mixture = generated.Mixture.draw(4, 30, 25.0, generator)
    assert mixture.means.sum(0).abs().max() < 1e-5
    samples = mixture.sample([4000] * 4, generator)
    noise = samples.inputs - mixture.means[samples.labels]
    inside = noise @ mixture.subspace
    assert inside.var() == pytest.approx(1.0, rel=0.05)
    total = noise.square().sum(1).mean()
    assert (total - inside.square().sum(1).mean()) / 27 == pytest.approx(25.0, rel=0.05)


def test_a_seed_draws_the_same_data_for_all_losses_and_is_part_of_the_digest():
    assert drawn().digest() == drawn("loss=iot").digest()
    assert drawn().digest() != drawn(seed=1).digest()
    assert [len(split) for split in drawn().splits.values()] == [200, 200, 200]


@pytest.mark.parametrize("carry_over", [0.0, 0.5])
def test_batches_have_each_class_equally_and_keep_a_share_of_the_last(carry_over, monkeypatch):
    monkeypatch.setattr(generated, "BATCHES", 30)
    train = drawn(f"data.carry_over={carry_over}", "data.per_class=10").splits["train"]
    order = torch.tensor(train.order(3)).view(30, 16)
    assert order.tolist() == torch.tensor(train.order(3)).view(30, 16).tolist()
    counts = [train.labels[batch].bincount().tolist() for batch in order]
    assert counts == [[4] * 4] * 30
    assert all(len(set(batch.tolist())) == 16 for batch in order)
    kept = [len({*one.tolist()} & {*two.tolist()}) for one, two in itertools.pairwise(order)]
    assert min(kept) >= 16 * carry_over
    assert set(order.flatten().tolist()) == set(range(40))  # all have been shown


def test_sizes_of_imbalanced_classes_fall_geometrically():
    assert class_sizes(3, 50, imbalance=25) == [50, 10, 2]
    train = drawn("data.imbalance=25", "data.sampler=shuffled").splits["train"]
    assert train.labels.bincount().tolist() == [50, 17, 6, 2]


@pytest.mark.parametrize(
    ("word", "sentence"),
    {
        "data.n_classes=1": "2 or more are needed",
        "data.dim=2": "need 3 or more",
        "data.imbalance=100": "must be 1 to 25",
        "data.imbalance=2": "use data.sampler=shuffled",
        "data.kappa=0": "must be positive",
        "data.carry_over=2": "must be between 0 and 1",
        "training.batch_size=7": "must be 8 or more, 2 samples per class",
        "training.batch_size=999": "a class has 50",
    }.items(),
)
def test_an_impossible_mixture_is_refused(word, sentence):
    with pytest.raises(UserError, match=sentence):
        drawn(word)


def test_outcomes_are_named_by_the_geometry_of_the_means():
    etf = {
        "geometry/variance": 1.0, "geometry/directions": 9.0, "geometry/evenness": 0.99,
        "geometry/nc2_deviation": 0.001, "geometry/least": 0.99,
    }  # fmt: skip
    assert outcome(etf) == "etf"
    assert outcome(etf | {"geometry/nc2_deviation": 0.1}) == "rich"
    assert outcome(etf | {"geometry/evenness": 0.0, "geometry/least": 0.0}) == "reduced"
    assert outcome(etf | {"geometry/directions": 1.0}) == "collapsed"
    assert outcome({}) == "diverged"


def test_networks_are_equal_for_all_losses():
    weights = []
    for loss in ("infonce", "byol"):
        config = compose("mixture", [f"loss={loss}"])
        torch.manual_seed(0)
        data = Mixture().load(compose("mixture", ["data.n_classes=3", "training.batch_size=12"]))
        weights.append(Mixture().build(config, data).encoder[0].weight)
    assert torch.equal(*weights)


def test_every_method_of_the_plan_has_the_arguments_of_its_loss():
    rows = [*synthetic.methods(), *synthetic.methods("log_sigmoid"), *synthetic.maps(())]
    assert len(set(rows)) > 100
    for row in {tuple(word for word in row if word.startswith("loss")) for row in rows}:
        make_loss(compose("mixture", row).loss)


def test_data_do_not_depend_on_the_number_of_threads():
    digests, before = set(), torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        digests.add(drawn("data.n_classes=10", "training.batch_size=100").digest())
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    assert len(digests) == 1


def test_the_demo_trains_seven_methods_and_writes_a_table_and_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generated, "BATCHES", 3)
    words = ("--classes", "3", "--epochs", "1", "--workers", "1", "--out", str(tmp_path))
    assert main(["demo", *words, "data.kappa=1"]) == 0
    said = capsys.readouterr().out
    assert said.count("[final ") == 7
    for title in ("Neg-MMIOT", "PushPull", "IOT", "InfoNCE", "BYOL", "VICReg"):
        assert title in said.split("outcome")[1]
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") >= 3
    assert "planned runs are missing" not in page
    assert main(["demo", *words, "data.kappa=1"]) == 0  # the same command trains nothing again
    assert "[final " not in capsys.readouterr().out


def test_the_plan_of_the_paper_has_every_k_both_shapings_and_the_maps(tmp_path, monkeypatch):
    plans = []

    def planned(plan, out, **_):
        plans.append(plan)
        raise UserError("stop")

    monkeypatch.setattr("tricouple_lab.runs.sweep.sweep", planned)
    assert main(["synthetic", "--part", "all", "--out", str(tmp_path)]) == 2
    (plan,) = plans
    assert (len(plan.rows), len(plan.blocks), plan.seeds) == (9, 3, (0, 1, 2))
    jobs = list(plan.jobs({}))
    assert len(jobs) == 9 * 3 * 3 + len(plan.extra)
    assert len(plan.extra) > 100
