"""lightly's calling convention: its batches, its processes; InfoNCE is its own loss."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tricouple as tc
from conftest import TEN, draw
from processes import in_processes
from reference import assert_same
from tricouple.adapters.lightly import TwoViewLoss

from lightly.loss import NTXentLoss  # isort: skip

EACH_LOSS = pytest.mark.parametrize(
    "criterion", [*TEN, tc.VICReg()], ids=lambda loss: type(loss).__name__
)


def views(n: int, dim: int = 6, seed: int = 0) -> list[torch.Tensor]:
    source = draw(n, seed, dim)
    return [(source + 0.3 * draw(n, seed + k, dim)).requires_grad_() for k in (1, 2)]


@EACH_LOSS
def test_it_is_the_loss_of_paired_views(criterion):
    both = views(6)
    assert torch.equal(TwoViewLoss(criterion)(*both), criterion(*tc.pair_views(*both)))


@EACH_LOSS
def test_a_batch_of_one_gives_zero_and_a_gradient(criterion):
    both = views(1)
    loss = TwoViewLoss(criterion)(*both)
    loss.backward()
    assert NTXentLoss()(*both).item() == 0.0 == pytest.approx(loss.item(), abs=1e-12)
    assert all(view.grad.abs().max() < 1e-12 for view in both)


@EACH_LOSS
def test_every_size_and_dimension_gives_a_number(criterion):
    criterion = TwoViewLoss(criterion)
    for n in range(1, 20):
        for dim in (1, 8):
            assert bool(torch.isfinite(criterion(*views(n, dim, seed=n))))


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match=r"criterion must be a loss of tricouple.*NTXentLoss"):
        TwoViewLoss(NTXentLoss())
    with pytest.raises(ValueError, match="view 1 has shape"):
        TwoViewLoss(tc.InfoNCE())(draw(3, 0), draw(4, 1))
    with pytest.raises(ValueError, match="FusedGromov has no meaning within one set"):
        TwoViewLoss(tc.FusedGromov())(*views(3))


# Several processes -------------------------------------------------------------------------------

ROWS = draw(18, 5, dim=4)  # nine images, seen twice


def trained(rows: torch.Tensor, distributed: bool) -> list[torch.Tensor]:
    """Losses of five steps, and the weights and temperature after them."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    tau = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    criterion = TwoViewLoss(tc.NegMMIOT(tau, 0.1), gather_distributed=distributed)
    both = nn.ModuleList([model, criterion])
    wrapped = DistributedDataParallel(model) if distributed else model
    optimiser = torch.optim.SGD(both.parameters(), lr=0.05)
    losses = []
    for _ in range(5):
        optimiser.zero_grad()
        loss = criterion(*wrapped(rows).chunk(2))
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return [torch.stack(losses), *(parameter.detach() for parameter in both.parameters())]


@pytest.mark.parametrize("sizes", [(5, 4), (1, 5, 3)], ids=["two", "three"])
def test_processes_of_any_size_train_as_one(sizes, tmp_path):
    first, second = ROWS.chunk(2)
    shares = [torch.cat(pair) for pair in zip(first.split(sizes), second.split(sizes), strict=True)]
    wanted = trained(ROWS, distributed=False)
    assert wanted[0][-1] < wanted[0][0]
    for found in in_processes(len(sizes), tmp_path, lambda rank: trained(shares[rank], True)):
        assert_same(found, wanted, 1e-10)
