"""What is measured: a call of a loss or a plan, ours or of another library, on a random batch."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize

import tricouple as tc

# Tasks: cases are comparable within one.
LOSS = "loss: value and gradient"
TRIPLET_PLAN = "triplet plan: potentials"
PAIR_PLAN = "pair plan: matrix"
N_ITERS, CLASSES = 10, 10

Call = Callable[[], Any]
Criterion = Callable[..., Tensor]  # of the rows of each set and the labels


@dataclass(frozen=True)
class Case:
    """One call: value and gradient of a loss, or a plan."""

    name: str
    loss: str  # a name of tricouple, of FORMULAS, PEERS or CALLS
    n: int = 0
    d: int = 128
    # What is wanted, and at most how much: "time / other", "time over X" (a case of the group),
    # "memory, N²" (N×N matrices), "memory / other", "growth, N^…"; None: no target.
    limits: dict[str, float | None] = field(default_factory=dict)
    c: float = 10.0  # sharpness
    batch: str = "easy"  # or "classes", "outlier", "collapsed", "duplicated"
    sets: str = "one"  # or "two" or "both": across two in one direction or in both; or "three"
    options: dict[str, Any] = field(default_factory=dict)  # of the criterion or the call
    versions: tuple[str, ...] = ("this", "other")
    world: int = 1  # processes that share the batch
    seed: int = 0
    task: str = LOSS
    cubic: bool = False  # whether it holds N×N×N tensors
    matrices: float = 20.0  # N×N float32 that it holds at most, all processes together

    def bytes(self) -> float:
        """Memory that it may need; backward keeps two N³ tensors per update of three."""
        return 4 * self.n**2 * (self.n * (6 * N_ITERS + 20) if self.cubic else self.matrices)


def batch(case: Case) -> tuple[list[Tensor], Tensor]:
    """Rows of each set, (n, d), and labels (n,): the same in every process.

    Classes have 4 samples. In "classes" they are ten with centres of their own, and class k has
    probability proportional to 1/(k + 1): classes differ in size, as in mini-batches.
    """
    torch.manual_seed(case.seed)
    n, d = case.n, case.d
    x, y, mean = torch.randn(n, d), torch.randn(n, d), torch.randn(d)
    labels = torch.arange(n) // 4
    if case.batch == "classes":
        labels = torch.multinomial(1 / torch.arange(1.0, CLASSES + 1), n, replacement=True)
        x = torch.randn(CLASSES, d)[labels] + x
        y = x + 0.5 * y
    if case.batch in ("outlier", "collapsed"):
        x = mean / mean.norm() + 0.02 * x
    if case.batch == "outlier":
        x[0] = -mean
    if case.batch == "duplicated":
        x = x[labels]
    count = {"one": 1, "three": 3}.get(case.sets, 2)
    return [x, y, torch.randn(n, d)][:count], torch.arange(n) if case.sets == "both" else labels


def prepare(case: Case, rank: int = 0) -> Call:
    """Do what is not measured (inputs, compilation), return the call that is."""
    sets, labels = batch(case)
    if case.loss in CALLS:
        return CALLS[case.loss](case, *sets, labels, **case.options)
    part = slice(rank * case.n // case.world, (rank + 1) * case.n // case.world)
    own = [rows[part].requires_grad_() for rows in sets]
    measured = criterion(case)

    def call() -> list[Tensor]:
        value = measured(*own, labels[part])
        return [value.detach(), *torch.autograd.grad(value, own)]

    return call


def criterion(case: Case) -> Criterion:
    """The loss of a case."""
    if case.loss in PEERS:
        from tricouple.torchvision_ops import declare_missing

        declare_missing()  # some import torchvision
        return PEERS[case.loss](case)
    if case.loss in FORMULAS:
        return partial(FORMULAS[case.loss], case.c)
    options = dict(case.options)
    if options.get("shaping") == ANCHORS:
        options["shaping"] = tc.shaping.log_sigmoid
    if case.world > 1:
        options["group"] = "world"
    found = getattr(tc, case.loss)(sharpness=case.c, **options)
    if case.sets == "two":
        return lambda x, y, labels: found(x, labels, ref_emb=y, ref_labels=labels)
    if case.sets == "three":
        return lambda x, y, z, _: found({"x": x, "y": y, "z": z})
    return tc.BothDirections(found) if case.sets == "both" else found


ANCHORS = "anchor by anchor"  # log-sigmoid as any other function ψ is computed

# --- losses of others: of one set, or across two in both directions; own rows of a shared batch ---


def dense_divergence(log_kernel: Tensor, target: Tensor) -> Tensor:
    """KL(P̃‖P), P̃ uniform on a mask, (N, N, N): autograd through every iteration of P."""
    log_mass = -torch.tensor(float(len(log_kernel))).log()
    f, g, h = (log_kernel.new_zeros(len(log_kernel)) for _ in range(3))
    for _ in range(N_ITERS):
        f = log_mass - torch.logsumexp(log_kernel + g[:, None] + h, dim=(1, 2))
        g = log_mass - torch.logsumexp(log_kernel + f[:, None, None] + h, dim=(0, 2))
        h = log_mass - torch.logsumexp(log_kernel + f[:, None, None] + g[:, None], dim=(0, 1))
    chosen = (log_kernel + f[:, None, None] + g[:, None] + h)[target]
    return -torch.tensor(float(len(chosen))).log() - chosen.mean()


def dense_neg_mmiot(c: float, embeddings: Tensor, labels: Tensor) -> Tensor:
    """Neg-MMIOT as published, with the N×N×N kernel in memory."""
    unit = normalize(embeddings, dim=1)
    scores = c * unit @ unit.T
    same, other = labels[:, None] == labels[None, :], ~torch.eye(len(labels), dtype=torch.bool)
    distinct = other[:, :, None] & other[:, None, :] & other[None, :, :]
    log_kernel = scores[:, :, None] - scores[:, None, :]  # −C_ijk/ε
    log_kernel = log_kernel.masked_fill(~distinct, -torch.inf)
    return dense_divergence(log_kernel, distinct & same[:, :, None] & ~same[:, None, :])


def dense_multi_modal(c: float, *sets: Tensor) -> Tensor:
    """Three modalities likewise, of rows that belong together."""
    x, y, z = (normalize(rows, dim=1) for rows in sets[:3])
    log_kernel = c * ((x @ y.T)[:, :, None] + (x @ z.T)[:, None, :] + y @ z.T)
    itself = torch.eye(len(x), dtype=torch.bool)
    return dense_divergence(log_kernel, itself[:, :, None] & itself[:, None, :])


def plain_info_nce(c: float, embeddings: Tensor, labels: Tensor) -> Tensor:
    """InfoNCE with class labels, as one would write it in a training script."""
    unit = normalize(embeddings, dim=1)
    itself = torch.eye(len(labels), dtype=torch.bool)
    logits = (unit @ unit.T * c).masked_fill(itself, -torch.inf)
    positives = (labels[:, None] == labels[None, :]) & ~itself
    log_probabilities = log_softmax(logits, dim=1).masked_fill(~positives, 0.0)
    counts = positives.sum(1)
    anchors = counts > 0
    return -(log_probabilities.sum(1)[anchors] / counts[anchors]).mean()


FORMULAS = {one.__name__: one for one in (dense_neg_mmiot, dense_multi_modal, plain_info_nce)}


def sup_con(case: Case) -> Criterion:
    """``SupConLoss`` of pytorch-metric-learning; each process computes that of the whole batch."""
    from pytorch_metric_learning.losses import SupConLoss
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    loss = SupConLoss(1 / case.c)
    return DistributedLossWrapper(loss) if case.world > 1 else loss


def clip_loss(case: Case) -> Criterion:
    """``ClipLoss`` of open_clip, own rows only, with the gradient of what was gathered."""
    from open_clip.loss import ClipLoss

    shared: dict[str, Any] = {}
    if case.world > 1:
        shared = {"local_loss": True, "gather_with_grad": True}
        shared |= {"rank": dist.get_rank(), "world_size": case.world}
    loss, scale = ClipLoss(**shared), torch.tensor(case.c)
    return lambda x, y, _: loss(normalize(x, dim=1), normalize(y, dim=1), scale)


def nt_xent(case: Case) -> Criterion:
    """``NTXentLoss`` of lightly: own rows are two views of half as many samples."""
    from lightly.loss import NTXentLoss

    loss = NTXentLoss(1 / case.c, gather_distributed=case.world > 1)
    return lambda embeddings, _: loss(*embeddings.chunk(2))


def ranking(case: Case) -> Criterion:
    """``MultipleNegativesRankingLoss`` of sentence-transformers, of embeddings."""
    module = import_module("sentence_transformers.sentence_transformer.losses")
    options = {"scale": case.c, "gather_across_devices": case.world > 1}
    loss = module.MultipleNegativesRankingLoss(nn.Identity(), **options)
    return lambda x, y, labels: loss.compute_loss_from_embeddings([x, y], labels)


PEERS = {one.__name__: one for one in (sup_con, clip_loss, nt_xent, ranking)}

# --- calls that are no losses of PyTorch ----------------------------------------------------------


def pair_plan(case: Case, x: Tensor, _: Tensor, method: str = "") -> Call:
    """The plan of 1 − s as a matrix, of ours or of a method of POT, which does all iterations."""
    cost = 1 - normalize(x, dim=1) @ normalize(x, dim=1).T
    cost, epsilon = cost.fill_diagonal_(torch.inf), 1 / case.c
    if not method:
        return lambda: tc.ot.sinkhorn(cost, epsilon, n_iters=N_ITERS).dense()
    masses = 2 * [torch.full((case.n,), 1 / case.n)]
    how = {"method": method, "numItermax": N_ITERS, "stopThr": 0.0, "warn": False}
    return partial(import_module("ot").sinkhorn, *masses, cost, epsilon, **how)


def triplet_plan(case: Case, x: Tensor, _: Tensor) -> Call:
    """Our plan of three marginals."""
    similarity, root = normalize(x, dim=1) @ normalize(x, dim=1).T, case.c**-0.5
    return partial(tc.ot.triplet_sinkhorn, similarity, root, root, n_iters=N_ITERS)


def ott(case: Case, *batch: Tensor, how: str) -> Call:
    """MMSinkhorn of OTT-JAX."""
    return import_module("benchmarks.ott_peer").prepare(case, *batch, how)


CALLS = {one.__name__: one for one in (pair_plan, triplet_plan, ott)}
