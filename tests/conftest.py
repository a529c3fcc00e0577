"""The batches every loss is tested on: each setting of the paper, small enough for N³ tensors."""

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

# oneDNN's AMX code ends with an illegal instruction on virtual machines that report AMX and do not
# allow it. Read when oneDNN is first used, here and in all processes that tests start.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import hypothesis
import pytest
import torch
from torch import Tensor, nn

import tricouple as tc
from batches import Batch
from processes import Pool

# Tiny tensors on few cores: threads would only wait for each other.
torch.set_num_threads(1)

hypothesis.settings.register_profile(
    "tests", deadline=None, derandomize=True, max_examples=25, database=None
)
hypothesis.settings.load_profile("tests")


# For tests of the implicit gradient that do not ask whether it is right.
UNCONVERGED = pytest.mark.filterwarnings('ignore:gradient="implicit" is that of a converged plan')


def draw(n: int, seed: int, dim: int = 5) -> Tensor:
    """Random rows of various lengths: the losses must normalise them."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return rows * (0.5 + 2 * torch.rand(n, 1, generator=generator, dtype=torch.float64))


# Losses of cosines, at a sharpness of ten.
TEN = [tc.NegMMIOT(), tc.PushPull(), tc.IOT(), tc.InfoNCE(), tc.InvaSpread(), tc.DBOT()]


# Losses at a sharpness of five.
COUPLED = {
    "neg_mmiot": partial(tc.NegMMIOT, 0.5, 0.4),
    "log_sigmoid": partial(tc.NegMMIOT, 0.5, 0.4, shaping="log_sigmoid"),
    "hinge": partial(tc.NegMMIOT, 0.5, 0.4, shaping="hinge"),
    "exponential": partial(tc.NegMMIOT, 0.5, 0.4, shaping="exponential"),
    "push_pull": partial(tc.PushPull, 0.5, 0.4),
    "iot": partial(tc.IOT, 0.2),
}
OTHERS = {
    "info_nce": partial(tc.InfoNCE, 0.2),
    "inva_spread": partial(tc.InvaSpread, 0.2),
    "siglip": partial(tc.SigLIP, 0.2, -3.0),
    "dbot": partial(tc.DBOT, 0.2),
    "fused_gromov": partial(tc.FusedGromov, 0.2, alpha=0.1),
}


# Every loss, and options that take other paths.
VARIANTS = {
    "NegMMIOT": partial(tc.NegMMIOT),
    "NegMMIOT-log_sigmoid": partial(tc.NegMMIOT, shaping="log_sigmoid"),
    "NegMMIOT-hinge": partial(tc.NegMMIOT, shaping="hinge"),
    "NegMMIOT-exponential": partial(tc.NegMMIOT, shaping="exponential"),
    "NegMMIOT-envelope": partial(tc.NegMMIOT, gradient="envelope"),
    "NegMMIOT-implicit": partial(tc.NegMMIOT, gradient="implicit", epsilon=1.0, n_iters=60),
    "NegMMIOT-tol": partial(tc.NegMMIOT, tol=0.05),
    "NegMMIOT-tol-hinge": partial(tc.NegMMIOT, tol=0.05, shaping="hinge"),
    "NegMMIOT-target": partial(tc.NegMMIOT, marginals="target"),
    "NegMMIOT-classes": partial(tc.NegMMIOT, marginals="classes"),
    "NegMMIOT-streamed": partial(tc.NegMMIOT, memory="streamed"),
    "PushPull": partial(tc.PushPull),
    "PushPull-tol": partial(tc.PushPull, tol=0.05),
    "PushPull-exponential": partial(tc.PushPull, shaping="exponential"),
    "IOT": partial(tc.IOT),
    "IOT-uniformity": partial(tc.IOT, uniformity=0.2),
    "InfoNCE": partial(tc.InfoNCE),
    "InvaSpread": partial(tc.InvaSpread),
    "SigLIP": partial(tc.SigLIP),
    "DBOT": partial(tc.DBOT),
    "VICReg": partial(tc.VICReg),
    "FusedGromov": partial(tc.FusedGromov),
}


def classes(*sizes: int, seed: int = 0) -> Tensor:
    """Shuffled labels with the given class sizes and arbitrary label values."""
    names = torch.tensor([7, -3, 40, 0, 12, 5])[: len(sizes)]
    labels = names.repeat_interleave(torch.tensor(sizes))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]


def views(n_instances: int, n_views: int, seed: int) -> Batch:
    """Noisy views of the same instances, stacked view by view."""
    source = draw(n_instances, seed)
    noisy = [source + 0.3 * draw(n_instances, seed + 1 + view) for view in range(n_views)]
    return Batch(torch.cat(noisy), torch.arange(n_instances).repeat(n_views))


def listed(n: int, m: int, count: int, seed: int, within: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Random distinct-entry triplets, some of them twice, that no labelling would produce."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    while len(rows) < count:
        i = int(torch.randint(n, (), generator=generator))
        j, k = torch.randint(m, (2,), generator=generator).tolist()
        if j != k and not (within and i in (j, k)):
            rows.append((i, j, k))
    rows += rows[:3]
    return tuple(torch.tensor(column) for column in zip(*rows, strict=True))


SETTINGS: dict[str, Batch] = {
    "balanced": Batch(draw(9, 0), classes(3, 3, 3)),
    "unbalanced": Batch(draw(10, 1), classes(5, 3, 2)),
    "singleton": Batch(draw(9, 2), classes(4, 2, 2, 1)),
    "two_views": views(5, 2, seed=3),
    "three_views": views(3, 3, seed=10),
    "across_unique": Batch(draw(7, 20), torch.arange(7), draw(7, 21), torch.arange(7)),
    "across_repeated": Batch(
        draw(5, 22),
        torch.tensor([3, 1, 4, 9, 5]),
        draw(9, 23),
        torch.tensor([1, 3, 1, 4, 5, 3, 3, 9, 9]),
    ),
    "across_unmatched": Batch(  # anchor 2 has no caption, the last caption no image
        draw(5, 24), torch.tensor([3, 1, 8, 3, 5]), draw(6, 25), torch.tensor([1, 3, 1, 5, 3, 0])
    ),
    "triplets_within": Batch(draw(8, 26), triplets=listed(8, 8, 20, 27, within=True)),
    "triplets_across": Batch(
        draw(5, 28), ref_emb=draw(7, 29), triplets=listed(5, 7, 16, 30, within=False)
    ),
}


# Every loss that has a coupling, soft enough (c ≈ 5) for sweeps to converge.
LOSSES: dict[str, Callable[..., nn.Module]] = {
    "neg_mmiot": partial(tc.NegMMIOT, temperature=0.5, epsilon=0.4),
    "push_pull": partial(tc.PushPull, temperature=0.5, epsilon_pos=0.4, epsilon_neg=0.8),
    "iot": partial(tc.IOT, epsilon=0.4),
    "iot_uniformity": partial(tc.IOT, epsilon=0.4, uniformity=2.0),
}


@pytest.fixture(params=list(LOSSES))
def loss(request: pytest.FixtureRequest) -> Callable[..., nn.Module]:
    """Makes a loss that has a coupling."""
    return LOSSES[request.param]


@pytest.fixture(params=["neg_mmiot", "push_pull"])
def tempered_loss(request: pytest.FixtureRequest) -> Callable[..., nn.Module]:
    """Makes a loss that has a temperature."""
    return LOSSES[request.param]


@pytest.fixture(params=list(SETTINGS))
def batch(request: pytest.FixtureRequest) -> Batch:
    """Every setting of the paper, in float64."""
    return SETTINGS[request.param].to(torch.float64)


@pytest.fixture
def settings() -> dict[str, Batch]:
    """The settings by name, for tests that need particular ones."""
    return {name: batch.to(torch.float64) for name, batch in SETTINGS.items()}


OF_THE_LIBRARY = [f"test_{name}.py" for name in ("geometry", "group", "properties")]


@pytest.fixture(autouse=True)
def nan_in_fresh_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that the package takes holds NaN until it is written: who reads it first, shows it."""
    part = request.path.relative_to(Path(__file__).parent).parts[0]
    if part in ("losses", "ot", "dense", *OF_THE_LIBRARY):
        for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
            monkeypatch.setattr(owner, name, _with_nan(getattr(owner, name)))


def _with_nan(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def made(*args, **options) -> Tensor:
        fresh = make(*args, **options)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        holds_numbers = fresh.is_floating_point() and not fresh.is_meta
        if caller.split(".")[0] == "tricouple" and holds_numbers:
            fresh.fill_(torch.nan)
        return fresh

    return made


@pytest.fixture(scope="module")
def pools(tmp_path_factory):
    """Processes that wait for work, by their number."""
    import_module("torch._dynamo")  # DistributedDataParallel does: once, before processes fork
    found: dict[int, Pool] = {}

    def of(world: int) -> Pool:
        if world in found and found[world].broken:
            found.pop(world).close()
        if world not in found:
            found[world] = Pool(world, tmp_path_factory.mktemp(f"world{world}"))
        return found[world]

    yield of
    for pool in found.values():
        pool.close()
