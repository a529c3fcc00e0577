"""open_clip's calling convention: its own loss where the formulas agree, its learnt scale."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tricouple as tc
from conftest import TEN, draw
from processes import in_processes
from reference import assert_same, relative_error, with_gradients
from tricouple.adapters.open_clip import ClipLoss, install

import open_clip  # isort: skip
from open_clip import loss as peers  # isort: skip

EACH_LOSS = pytest.mark.parametrize(
    "criterion", [*TEN, tc.FusedGromov()], ids=lambda loss: type(loss).__name__
)


def features(n: int = 6, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    images = draw(n, 0)
    texts = images + 0.3 * draw(n, 1)
    unit = [nn.functional.normalize(rows).to(dtype) for rows in (images, texts)]
    return [rows.requires_grad_() for rows in unit]


def scale(value: float = 14.0) -> torch.Tensor:
    return torch.tensor(value, requires_grad=True)


def test_info_nce_is_clip_loss_and_the_scale_receives_its_gradient():
    raw = [rows.detach().mul(3).requires_grad_() for rows in features()]  # models normalise them
    leaves = [*raw, scale()]
    ours, theirs = (
        with_gradients(criterion(*map(nn.functional.normalize, raw), leaves[-1]), leaves)
        for criterion in (ClipLoss(tc.InfoNCE()), peers.ClipLoss())
    )
    assert_same(ours, theirs, 1e-6)  # the scale is float32


@EACH_LOSS
@pytest.mark.parametrize("c", [5.0, 20.0])
def test_the_scale_is_the_sharpness_of_both_directions(criterion, c):
    images, texts = features()
    ids, factor = torch.arange(len(images)), scale(c)
    loss = ClipLoss(criterion)(images, texts, factor)
    epsilon = 0.1 if isinstance(criterion, tc.NegMMIOT | tc.PushPull) else 1.0
    tau = (1 / (factor.detach() * epsilon)).requires_grad_()
    there = criterion(images, ids, ref_emb=texts, ref_labels=ids, temperature=tau)
    back = criterion(texts, ids, ref_emb=images, ref_labels=ids, temperature=tau)
    direct = (there + back) / 2
    torch.testing.assert_close(loss, direct)
    loss.backward()
    direct.backward()
    torch.testing.assert_close(factor.grad, -tau.grad * tau.detach() / c)  # dτ/dc = −τ/c


def test_answers_come_as_a_number_or_a_dictionary_that_sums_to_it():
    batch = *features(), scale()
    number = ClipLoss(tc.NegMMIOT())(*batch)
    answer = ClipLoss(tc.NegMMIOT())(*batch, output_dict=True)
    assert list(answer) == ["contrastive_loss"]
    assert torch.equal(sum(answer.values()), number)


def test_a_bias_of_all_scores_changes_nothing_and_stays_in_the_graph():
    bias = torch.tensor(-10.0, requires_grad=True)
    for make in (lambda: ClipLoss(tc.InfoNCE()), peers.ClipLoss):
        plain, biased = make()(*features(), scale()), make()(*features(), scale(), logit_bias=bias)
        torch.testing.assert_close(plain, biased)
        (slope,) = torch.autograd.grad(biased, bias)
        assert abs(slope.item()) < 1e-6


@EACH_LOSS
def test_a_pair_alone_gives_zero(criterion):
    leaves = [*features(1), scale()]
    loss = ClipLoss(criterion)(*leaves)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-12)


def test_accumulated_features_of_other_steps_need_no_gradient():
    """As with --accum-freq 2: the loss of the whole, twice, with gradients of one half each."""
    images, texts = features(8)
    whole = with_gradients(ClipLoss(tc.NegMMIOT())(images, texts, scale()), [images, texts])[1]
    parts = []
    for own in (slice(0, 4), slice(4, 8)):
        leaves = [rows.detach()[own].requires_grad_() for rows in (images, texts)]
        mixed = []
        for rows, leaf in zip((images, texts), leaves, strict=True):
            mixed.append(rows.detach().index_put((torch.arange(8)[own],), leaf))
        parts.append(torch.autograd.grad(ClipLoss(tc.NegMMIOT())(*mixed, scale()), leaves))
    joined = [torch.cat(sides) for sides in zip(*parts, strict=True)]
    assert relative_error(torch.cat([g.flatten() for g in joined]), whole) < 1e-10


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="VICReg has no temperature"):
        ClipLoss(tc.VICReg())
    with pytest.raises(TypeError, match="criterion must be a loss of tricouple"):
        ClipLoss(peers.ClipLoss())
    with pytest.raises(ValueError, match="image_features has 3 rows, text_features 4"):
        ClipLoss(tc.InfoNCE())(draw(3, 0), draw(4, 1), scale())
    with pytest.raises(ValueError, match="temperature must be finite and > 0"):
        ClipLoss(tc.InfoNCE())(*features(), torch.tensor(-1.0))
    with pytest.raises(ValueError, match="neither create_loss nor create_task"):
        install(SimpleNamespace(), tc.NegMMIOT())
    siglip = ClipLoss(tc.SigLIP())
    assert torch.isfinite(siglip(*features(), scale()))
    with pytest.raises(ValueError, match="SigLIP has its own bias"):
        siglip(*features(), scale(), logit_bias=torch.tensor(-10.0))


# Several processes -------------------------------------------------------------------------------


class Towers(nn.Module):
    """Two towers and a scale, called as open_clip's models are."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image, self.text = nn.Linear(5, 3).double(), nn.Linear(5, 3).double()
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images, texts):
        towers = self.image(images), self.text(texts)
        return (*(nn.functional.normalize(rows) for rows in towers), self.logit_scale.exp())


def weights_after_three_steps(rows: slice, world_size: int) -> list[torch.Tensor]:
    model = Towers()
    wrapped = DistributedDataParallel(model) if world_size > 1 else model
    criterion = ClipLoss(tc.NegMMIOT(), world_size)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimiser.zero_grad()
        loss = criterion(*wrapped(*(side[rows] for side in features(8))))
        loss.backward()
        optimiser.step()
    return [loss.detach(), *(parameter.detach() for parameter in model.parameters())]


def test_processes_train_as_one(tmp_path):
    wanted = weights_after_three_steps(slice(None), 1)
    shares = [slice(0, 5), slice(5, 8)]
    answers = in_processes(2, tmp_path, lambda rank: weights_after_three_steps(shares[rank], 2))
    for found in answers:
        assert_same(found, wanted, 1e-6)  # the scale is float32


# The training program ----------------------------------------------------------------------------


OPTIONS = {
    "distill": False, "model": "RN50", "siglip": False, "local_loss": False,
    "gather_with_grad": False, "rank": 0, "world_size": 1, "horovod": False,
    "loss_dist_impl": None, "coca_caption_loss_weight": 2.0, "coca_contrastive_loss_weight": 1.0,
}  # fmt: skip


def counted() -> tuple[tc.NegMMIOT, list[int]]:
    """A loss, and a list that grows with each call of it."""
    calls: list[int] = []

    class Counted(tc.NegMMIOT):
        def run(self, *arguments, **options):
            calls.append(1)
            return super().run(*arguments, **options)

    return Counted(), calls


def test_open_clip_3_trains_with_the_installed_loss():
    program = SimpleNamespace(create_loss=open_clip.create_loss)
    criterion, calls = counted()
    install(program, criterion)
    loss = program.create_loss(SimpleNamespace(**OPTIONS))
    loss(*features(8), torch.tensor(10.0), output_dict=True)["contrastive_loss"].backward()
    assert len(calls) == 1


def test_open_clip_4_trains_with_the_installed_loss():
    """Its task calls ``loss(**model_out, output_dict=True)`` and adds what ends in ``_loss``."""

    class Task:
        def __init__(self, loss):
            self.loss = loss

        def __call__(self, **outputs):
            found = self.loss(**outputs, output_dict=True)
            return sum(value for key, value in found.items() if key.endswith("_loss"))

    program = SimpleNamespace(create_task=lambda args, model: Task(peers.ClipLoss()))
    criterion, calls = counted()
    install(program, criterion)
    images, texts = features(8)
    scale = torch.tensor(10.0)
    task = program.create_task(SimpleNamespace(**OPTIONS), None)
    task(image_features=images, text_features=texts, logit_scale=scale).backward()
    assert len(calls) == 1


@pytest.mark.parametrize("other", [{"siglip": True}, {"distill": True}, {"model": "coca_base"}])
def test_a_program_with_another_loss_is_refused(other):
    program = SimpleNamespace(create_loss=open_clip.create_loss)
    install(program, tc.NegMMIOT())
    with pytest.raises(ValueError, match="can replace ClipLoss alone"):
        program.create_loss(SimpleNamespace(**OPTIONS | other))


def test_a_scale_of_float64_keeps_its_digits():
    images, texts = (side.detach().double() for side in features(8))
    scale = torch.tensor(2.0, dtype=torch.float64).log().exp() * 7.3
    found = ClipLoss(tc.InfoNCE())(images, texts, scale)
    wanted = peers.ClipLoss()(*(nn.functional.normalize(x) for x in (images, texts)), scale)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
