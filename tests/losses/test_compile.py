"""Compiled, exported and transformed losses are the eager ones, in value and gradient."""

import copy
import gc
import math
import pickle

import pytest
import torch
from torch import nn

import tricouple as tc
from conftest import UNCONVERGED, VARIANTS, draw, listed
from reference import relative_error
from tricouple.losses.base import ContrastiveLoss
from tricouple_lab.names import LOSSES

N = 10
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 0, 1, 2, 0])
OTHERS = draw(12, 5)
ACROSS = {
    "labels": LABELS,
    "ref_emb": OTHERS,
    "ref_labels": torch.tensor([2, 1, 0, 0, 1, 1, 2, 2, 0, 0, 1, 2]),
}
A, P, K = listed(N, N, 20, 3, within=True)
CALLS = {
    "within": {"labels": LABELS},
    "list": {"labels": LABELS.tolist()},
    "across": ACROSS,
    "placed": {
        "labels": LABELS,
        "ref_emb": OTHERS,
        "ref_labels": torch.cat([LABELS, LABELS[:2]]),
        "ref_index": torch.arange(N),
    },
    "triplets": {"indices_tuple": (A, P, K)},
    "pairs": {"indices_tuple": (A, A.sub(1) % N, A, A.add(1) % N)},
    "number": {"labels": LABELS, "temperature": 0.7},
    "learnt": {"labels": LABELS, "temperature": torch.tensor(0.7, requires_grad=True)},
}


class OwnWeight(ContrastiveLoss):
    """A user's loss, with a parameter of its own."""

    scale = "temperature"

    def __init__(self):
        super().__init__()
        self._set_scale(0.5, None)
        self.weight = nn.Parameter(torch.tensor(2.0))

    def compute(self, batch):
        contrast = (batch.relation.triplets().contrast.dense() * batch.similarity()).sum()
        return self.weight * -contrast.exp() / batch.temperature


def learnable(start=0.5):
    return nn.Parameter(torch.tensor(start))


BOTH = ("within", "across")
# How a loss is made, and the calls that it is tested with.
MADE = {name: (make, BOTH) for name, make in VARIANTS.items()} | {
    "NegMMIOT": (tc.NegMMIOT, tuple(CALLS)),
    "NegMMIOT-learnable": (lambda: tc.NegMMIOT(learnable()), BOTH),
    "NegMMIOT-tensor": (lambda: tc.NegMMIOT(torch.tensor(0.5)), ("within",)),
    "log_sigmoid-learnable": (
        lambda: tc.NegMMIOT(learnable(), shaping="log_sigmoid", memory="streamed", n_iters=2),
        ("within",),
    ),
    "PushPull": (tc.PushPull, tuple(CALLS)),
    "PushPull-implicit": (lambda: tc.PushPull(gradient="implicit"), ("across",)),
    "PushPull-streamed": (lambda: tc.PushPull(memory="streamed"), BOTH),
    "IOT": (tc.IOT, ("triplets", "learnt")),
    "IOT-envelope": (lambda: tc.IOT(gradient="envelope"), BOTH),
    "InfoNCE": (tc.InfoNCE, tuple(CALLS)),
    "InfoNCE-learnable": (lambda: tc.InfoNCE(learnable()), ("within",)),
    "InfoNCE-joint": (lambda: tc.InfoNCE(partition="joint"), ("within", "learnt")),
    "SigLIP": (lambda: tc.SigLIP(learn_bias=True), tuple(CALLS)),
    "FusedGromov": (tc.FusedGromov, ("across",)),
    "own": (OwnWeight, (*BOTH, "learnt")),
}
CASES = [(name, call) for name, (_, calls) in MADE.items() for call in calls]
NAMED = ("linear", "log_sigmoid", "hinge")
SIX = [lambda s=s: tc.NegMMIOT(shaping=s) for s in NAMED] + [tc.PushPull, tc.IOT, tc.InfoNCE]


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def leaves(criteria, dtype):
    """Embeddings of each criterion, and all that may learn beside them."""
    rows = torch.stack([draw(N, seed) for seed in range(len(criteria))]).to(dtype)
    given = [CALLS["learnt"]["temperature"]]
    return [rows.requires_grad_(), *given, *(p for c in criteria for p in c.parameters())]


def test_every_loss_is_among_the_cases():
    classes = {type(make()).__name__ for make, _ in MADE.values()}
    assert {row.class_name for row in LOSSES.values() if row.class_name} <= classes


@UNCONVERGED
@pytest.mark.parametrize(
    ("dtype", "tolerance", "cases"),
    [(torch.float64, 1e-12, CASES), (torch.float32, 1e-5, CASES[::3])],
    ids=["float64", "float32"],
)
def test_compiled_losses_are_the_eager_ones(dtype, tolerance, cases):
    criteria = [MADE[name][0]() for name, _ in cases]
    learning = leaves(criteria, dtype)

    def losses(rows):
        doubled = torch.unbind(2 * rows)  # other operations are in the graph too
        called = zip(criteria, doubled, cases, strict=True)
        return torch.stack([c(row, **CALLS[call]).double() for c, row, (_, call) in called])

    compiled = torch.compile(losses, fullgraph=True, backend="aot_eager")
    results = []
    for function in (losses, compiled):
        values = function(learning[0])
        weights = torch.linspace(1, 2, len(values), dtype=torch.float64)
        results.append((values.detach(), *torch.autograd.grad(values @ weights, learning)))
    (wanted, rows, *settings), (found, compiled_rows, *compiled_settings) = results
    for case, *pairs in zip(cases, found, wanted, compiled_rows, rows, strict=True):
        assert relative_error(*pairs[:2]) <= tolerance, case
        assert relative_error(*pairs[2:]) <= tolerance, case
    for one, other in zip(compiled_settings, settings, strict=True):
        assert relative_error(one, other) <= max(tolerance, 3e-7)  # float32 parameters


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's own use
def test_inductor_computes_the_losses_of_eager_mode():
    network, criteria = nn.Linear(6, 4), [make() for make in SIX]
    inputs = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))

    def losses(inputs, labels):
        return torch.stack([criterion(network(inputs).tanh(), labels) for criterion in criteria])

    results = []
    for function in (losses, torch.compile(losses, fullgraph=True)):
        values = function(inputs, torch.arange(12) % 3)
        gradients = torch.autograd.grad(values.sum(), list(network.parameters()))
        results.append((values, *gradients))
    for wanted, found in zip(*results, strict=True):
        assert relative_error(found, wanted) <= 1e-5


def graphs():
    """How many graphs were compiled."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("within", [True, False])
def test_batches_of_any_size_share_one_graph(within):
    criterion = tc.NegMMIOT()
    calls = {"dynamic": True, "fullgraph": True, "backend": "aot_eager"}
    compiled = torch.compile(lambda *batch: criterion(batch[0].tanh(), *batch[1:]), **calls)
    for n in (8, 12, 31, 70):
        rows, others = draw(n, n).requires_grad_(), draw(n + 3, 1)
        batch = (rows, torch.arange(n) % 3)
        batch += () if within else (None, others, torch.arange(n + 3) % 3)
        (wanted,) = torch.autograd.grad(criterion(rows.tanh(), *batch[1:]), rows)
        (found,) = torch.autograd.grad(compiled(*batch), rows)
        assert torch.equal(found, wanted)
    assert graphs() == 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_gradient_is_computed_where_none_is_asked_for(mode, monkeypatch):
    criterion, rows = tc.NegMMIOT(learnable()), draw(N, 0).requires_grad_()
    wanted = criterion(rows, LABELS)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    torch.compile(torch.neg, backend="aot_eager")(rows)  # the compiler looks up what it knows once
    with mode():
        # Rows without a graph, and no parameter that learns: the same without a mode.
        monkeypatch.setattr(torch.autograd, "grad", None)
        assert torch.equal(compiled(rows, LABELS), wanted)
    frozen = torch.compile(tc.NegMMIOT(0.5), fullgraph=True, backend="aot_eager")
    assert torch.equal(frozen(rows.detach(), LABELS), wanted)


def test_errors_of_a_batch_reach_the_caller():
    criterion = tc.NegMMIOT()
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    rows = draw(N, 0)
    compiled(rows, LABELS)
    rows[3, 1] = math.nan
    with pytest.raises(ValueError, match=r"embeddings must be finite, found NaN .* in row 3"):
        compiled(rows, LABELS)
    with pytest.raises(ValueError, match="has no positive pair"):
        compiled(draw(N, 0), torch.arange(N))
    criterion.empty = "zero"
    assert compiled(draw(N, 0).requires_grad_(), torch.arange(N)) == 0


def test_what_is_set_later_is_seen_and_diagnostics_are_those_of_the_call():
    criterion, twin = tc.NegMMIOT(), tc.NegMMIOT(epsilon=0.3, temperature=0.2)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    rows = draw(N, 0).requires_grad_()
    compiled(rows, LABELS)
    criterion.epsilon, criterion.temperature = 0.3, 0.2
    assert torch.equal(compiled(rows, LABELS), twin(rows, LABELS))
    assert criterion.diagnostics() == twin.diagnostics()


@pytest.mark.parametrize(
    "twin", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]
)
def test_copies_are_losses_of_their_own(twin):
    criterion = tc.InfoNCE()
    other = twin(criterion)
    other.temperature = 0.7
    compiled = torch.compile(other, fullgraph=True, backend="eager")
    assert torch.equal(compiled(draw(N, 0), LABELS), tc.InfoNCE(0.7)(draw(N, 0), LABELS))
    with pytest.raises(ValueError, match="there was none"):
        criterion.diagnostics()


def operands(rows, wanted, criterion, labels=LABELS):
    names = ["embeddings", "labels"]
    return names, [wanted, False], None, criterion._number, False, [rows, labels]


ROWS = draw(2 * N, 0)
LAYOUTS = {
    "contiguous": ROWS[:N].clone(),
    "strided": ROWS[::2],
    "permuted": ROWS[:N].T.contiguous().T,
    "expanded columns": ROWS.as_strided((N, 4), (5, 1), 3),
    "bfloat16": ROWS[:N].bfloat16(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("wanted", [True, False])
def test_operator_keeps_the_rules_of_operators(layout, wanted):
    criterion, rows = tc.NegMMIOT(), LAYOUTS[layout].detach()
    arguments = operands(rows, wanted, criterion)
    torch.library.opcheck(torch.ops.tricouple.loss_and_gradients, arguments)
    learning = operands(rows.requires_grad_(wanted), wanted, criterion)
    torch.library.opcheck(torch.ops.tricouple.loss, learning)
    rows.requires_grad_(False)


def test_a_graph_whose_loss_is_gone_says_so():
    criterion = tc.InfoNCE()
    arguments = operands(draw(N, 0), False, criterion)
    torch.ops.tricouple.loss(*arguments)
    del criterion
    gc.collect()
    with pytest.raises(RuntimeError, match="the loss of this graph is gone"):
        torch.ops.tricouple.loss(*arguments)


TRANSFORMED = ["NegMMIOT", "InfoNCE", "VICReg", "own"]


@pytest.mark.parametrize("name", TRANSFORMED)
def test_function_transforms_give_the_gradients_of_autograd(name):
    criterion = MADE[name][0]()
    batches = torch.stack([draw(N, seed) for seed in range(3)])
    labels = torch.stack([LABELS, LABELS.flip(0), LABELS.roll(1)])
    leaf = batches.clone().requires_grad_()
    wanted = torch.stack([criterion(*each) for each in zip(leaf, labels, strict=True)])
    (gradients,) = torch.autograd.grad(wanted.sum(), leaf)
    found = torch.func.grad(criterion)(batches[0], LABELS)
    assert torch.equal(found, gradients[0])
    assert torch.equal(torch.vmap(criterion)(batches, labels), wanted)
    per_batch = torch.vmap(torch.func.grad(criterion))(batches, labels)
    assert torch.equal(per_batch, gradients)
    torch.vmap(criterion, (1, None))(leaf.transpose(0, 1), LABELS).sum().backward()
    assert torch.equal(leaf.grad[0], gradients[0])


def test_function_transforms_see_the_temperature():
    criterion, rows, tau = tc.NegMMIOT(learnable()), draw(N, 0), torch.tensor(0.4)
    found = torch.func.grad(lambda t: criterion(rows, LABELS, temperature=t))(tau)
    own = torch.func.grad(
        lambda parameters: torch.func.functional_call(criterion, parameters, (rows, LABELS))
    )({"temperature": tau})["temperature"]
    tau.requires_grad_()
    criterion(rows, LABELS, temperature=tau).backward()
    assert torch.equal(found, tau.grad)
    assert torch.equal(own, tau.grad)


def test_second_derivatives_are_refused_in_all_ways():
    criterion, rows = tc.NegMMIOT(), draw(N, 0)
    sentence = "tricouple has no second derivatives"
    slope = torch.func.grad(lambda x: criterion(x, LABELS))
    with pytest.raises(RuntimeError, match=sentence):
        torch.func.grad(lambda x: slope(x).sum())(rows)
    leaf = rows.clone().requires_grad_()
    value = torch.ops.tricouple.loss(*operands(leaf, True, criterion))
    (gradient,) = torch.autograd.grad(value, leaf, create_graph=True)
    with pytest.raises(RuntimeError, match=sentence):
        torch.autograd.grad(gradient.sum(), leaf)
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")(leaf, LABELS)
    (gradient,) = torch.autograd.grad(compiled, leaf, create_graph=True)
    with pytest.raises(RuntimeError, match=r"double backward|not require grad"):  # PyTorch's own
        torch.autograd.grad(gradient.sum(), leaf)


def test_a_transform_inside_compiled_code_is_refused():
    criterion = tc.NegMMIOT()
    slope = torch.compile(torch.func.grad(lambda x: criterion(x, LABELS)), fullgraph=True)
    with pytest.raises(Exception, match="transform the loss outside of"):
        slope(draw(N, 0))


class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network, self.criterion = nn.Linear(5, 4), tc.NegMMIOT(learnable())

    def forward(self, inputs, labels):
        return self.criterion(self.network(inputs), labels)


@pytest.mark.filterwarnings("ignore:At pre-dispatch tracing")  # that it keeps the operator
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.skipif(torch.__version__ < "2.5", reason="exported by torch 2.4, it has a value alone")
def test_an_exported_model_with_its_loss_trains(strict):
    model, inputs = Trained(), draw(N, 0).float()
    program = torch.export.export(model, (inputs, LABELS), strict=strict)
    exported = program.module()
    results = []
    for module in (model, exported):
        value = module(inputs, LABELS)
        settings = [parameter for _, parameter in sorted(module.named_parameters())]
        results.append((value, *torch.autograd.grad(value, settings)))
    for wanted, found in zip(*results, strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_compiled_autocast_leaves_a_float32_island_and_scales_before_rounding(dtype):
    criterion = tc.NegMMIOT()
    rows = draw(N, 0).to(dtype).requires_grad_()

    def loss(rows):
        with torch.autocast("cpu", dtype):
            return criterion(rows, LABELS)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert compiled(rows).dtype == torch.float32
    assert torch.equal(compiled(rows), criterion(rows, LABELS))
    # So small a loss has a gradient that float16 does not hold before a scaler makes it larger.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    results = []
    for function in (loss, compiled):
        scaled = scaler.scale(1e-8 * function(rows))
        results.append(torch.autograd.grad(scaled, rows)[0].float())
    wanted, found = results
    assert wanted.norm() > 0
    assert relative_error(found, wanted) <= 2 * torch.finfo(dtype).eps


SOLVED = {
    "sinkhorn": lambda s: tc.ot.sinkhorn(1 - s, 0.5).potentials[0],
    "triplet_sinkhorn": lambda s: tc.ot.triplet_sinkhorn(s, 0.5, 0.5).potentials[0],
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo's own look
@pytest.mark.parametrize("name", SOLVED)
def test_plans_break_a_graph_and_say_so_where_it_must_be_one(name):
    rows = nn.functional.normalize(draw(N, 0)).requires_grad_()

    def first(rows):
        return SOLVED[name](rows @ rows.T)[0]

    results = []
    for function in (first, torch.compile(first, backend="aot_eager")):
        value = function(rows)
        results.append((value, *torch.autograd.grad(value, rows)))
    for wanted, found in zip(*results, strict=True):
        assert relative_error(found, wanted) <= 1e-12
    torch._dynamo.reset()
    reason = r"couplings cannot be traced|_dynamo\.disable"  # an old torch gives none
    with pytest.raises(torch._dynamo.exc.Unsupported, match=reason):
        torch.compile(first, fullgraph=True, backend="aot_eager")(rows)
