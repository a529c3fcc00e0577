"""The one call that all losses share."""

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from tricouple import checks
from tricouple.batch import SHARP, Batch, Call, IndicesTuple, check_batch, check_call
from tricouple.checks import Deferred, Labels
from tricouple.groups import Gathered, Group, Processes, check_group, gather_call
from tricouple.losses import coupled, operator
from tricouple.losses.coupled import Part
from tricouple.numeric import ieee_products, never_compiled, number_of, on_host, traced
from tricouple.ot.solver import Sweeps, watched

Empty = Literal["raise", "zero"]
Check = Literal["full", "shapes"]
Gradient = Literal["unrolled", "implicit", "envelope"]
Marginals = Literal["uniform", "target", "classes"]
Memory = Literal["auto", "matrices", "streamed"]
Variant = Literal["formula", "published"]
GivenSharpness = float | Literal["paper"] | None
Compute = Callable[[Batch], Tensor]
Need = tuple[bool | Tensor, str]  # whether a batch is without something, and its name

DEFAULT_SHARPNESS = 10.0

# The ε of a loss that is given none: this very object, so that an ε that is given is known.
DEFAULT_EPSILON = float("0.1")

# Above this sharpness a temperature without an ε is likely to be meant for InfoNCE.
_UNUSUAL = 30.0

# Words of other libraries for our arguments.
_OTHER_WORDS = {
    "tau": "temperature",
    "eps": "epsilon",
    "reg": "epsilon",
    "scale": "sharpness",
    "logit_scale": "sharpness",
    "max_iter": "n_iters",
}


class ContrastiveLoss(nn.Module):
    """A loss of embeddings and their labels; subclasses give ``compute``.

    All losses have first derivatives. Second ones (gradient penalties, Hessian-vector products)
    ``VICReg``, ``InvaSpread`` and ``DBOT`` have; gradients of plans, ``InfoNCE`` and ``SigLIP`` are
    computed with their values, and differentiating them again raises a ``RuntimeError``.

    Args:
        empty: What to do with a batch that has no pair to learn from: ``"raise"`` an error, or
            ``"zero"``, a loss of 0 that still has a gradient path.
        check: ``"full"``: bad values raise an error that names them. ``"shapes"``: only what is
            known without reading a value is checked, so that nothing waits for an accelerator; NaN
            then shows as a loss that is not finite, and in ``diagnostics()``.
        group: Processes whose samples are one batch: None for this one alone, ``"world"``, a
            ``ProcessGroup`` or a ``DeviceMesh`` of one dimension. Each passes its own samples, and
            indices of them, and gets the loss of all; its gradients are such that the mean over
            processes, as DistributedDataParallel and FSDP take it, is exact.
    """

    needs_negatives = True
    unit_length = True  # whether the loss takes unit vectors, or embeddings as they are
    scale: str | None = None  # the setting that divides similarities: τ, or what stands for it
    regularisation_setting: str | None = None  # ε, if there are both
    paper_sharpness: float | None = None  # c of the paper's settings, if it states them
    sweeps: Sweeps  # how its plan is solved, if it has one
    _number: int  # of the loss in graphs
    _known: float | None = None  # the scale that was last read, where a device holds it

    def __new__(cls, *args: Any, **settings: Any) -> Any:
        """Name the arguments that other libraries call otherwise."""
        known = cls.__init__.__code__.co_varnames
        for name in settings:
            if name in _OTHER_WORDS and name not in known:
                raise TypeError(
                    f"{cls.__name__} has no argument {name!r}: the name here is "
                    f"{_OTHER_WORDS[name]!r}"
                )
        loss = super().__new__(cls)
        loss.__dict__["_number"] = operator.register(loss)  # also a copy has one of its own
        return loss

    def __init__(
        self, *, empty: Empty = "raise", check: Check = "full", group: Group = None
    ) -> None:
        super().__init__()
        check_group(group)
        checks.one_of("empty", empty, ("raise", "zero"))
        checks.one_of("check", check, ("full", "shapes"))
        self.empty: Empty = empty
        self.check: Check = check
        self.group = group
        self._last: Batch | None = None

    def _set_scale(
        self, value: float | Tensor | None, sharpness: GivenSharpness, epsilon: float = 1.0
    ) -> None:
        """Take τ, or what stands for it, as given; else from the sharpness, 1/(cε)."""
        assert self.scale is not None
        given, name = value is not None, type(self).__name__
        if value is None:
            if sharpness == "paper":
                sharpness = self.paper_sharpness
                if sharpness is None:
                    raise ValueError(
                        f'sharpness="paper": the paper states none for {name}, give a number'
                    )
            number = DEFAULT_SHARPNESS if sharpness is None else sharpness
            if isinstance(number, str):
                raise TypeError(f'sharpness must be a number or "paper", got {number!r}')
            checks.positive_number("sharpness", number)
            value = 1 / float(number) / epsilon
        elif sharpness is not None:
            raise ValueError(
                f"sharpness={sharpness} and {self.scale}={value} were both given, but one follows "
                "from the other: leave one out"
            )
        checks.positive_number(self.scale, value)
        setattr(self, self.scale, value)
        self._known = tau = number_of(value)
        if given and epsilon is DEFAULT_EPSILON and 0 < tau * epsilon < 1 / _UNUSUAL:
            c = 1 / (tau * epsilon)
            warnings.warn(
                f"{name}(temperature={tau:g}) has sharpness c = 1/(τε) = {c:g}, because "
                f"epsilon is {epsilon:g}; InfoNCE(temperature={tau:g}) has c = {1 / tau:g}. For "
                f"that use {name}(sharpness={1 / tau:g}); if c = {c:g} is meant, use "
                f"{name}(sharpness={c:g}) or give epsilon",
                stacklevel=3,
            )

    @property
    def sharpness(self) -> float | None:
        """C = 1/(τε) now, or 1/τ or 1/ε where there is only one of the two; None without either.

        Example:
            >>> from tricouple import NegMMIOT
            >>> NegMMIOT().sharpness, NegMMIOT(temperature=0.1, epsilon=0.5).sharpness
            (10.0, 20.0)
        """
        if self.scale is None:
            return None
        return 1 / self._product(getattr(self, self.scale))

    def _product(self, temperature: float | Tensor) -> float:
        """τε of this τ; τ where there is only one of the two."""
        name = self.regularisation_setting
        return number_of(temperature) * (1.0 if name is None else getattr(self, name))

    def __setattr__(self, name: str, value: Any) -> None:
        """Make a new setting that is a tensor a buffer; one that replaces a number is none.

        A numpy number becomes a number.
        """
        if isinstance(value, Number) and hasattr(value, "item"):
            value = value.item()
        if name in self.__dict__.get("_buffers", ()) and not isinstance(value, Tensor):
            delattr(self, name)
        setting = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
        if setting and name not in self.__dict__ and name not in self._parameters:
            self.register_buffer(name, value)
        else:
            super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """Its settings, on one line; those of the sweeps name themselves."""
        parts = [] if self.sharpness is None else [f"sharpness={self.sharpness:g}"]
        arguments = inspect.signature(type(self).__init__).parameters
        for name in arguments:
            if name in ("sharpness", "empty", "check", "group") or not hasattr(self, name):
                continue
            value = getattr(self, name)
            text = f"{value:g}" if isinstance(value, float) else f"{value}"
            text = repr(value) if isinstance(value, str) else text
            parts.append(f"{name}={'learnable' if isinstance(value, nn.Parameter) else text}")
        if "gradient" in arguments and hasattr(self, "sweeps"):
            parts.append(f"{self.sweeps}")
        return ", ".join(parts)

    def forward(
        self,
        embeddings: Tensor,
        labels: Labels | None = None,
        indices_tuple: IndicesTuple | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Labels | None = None,
        *,
        temperature: float | Tensor | None = None,
        ref_index: Labels | None = None,
        pairs: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Compute the loss of a batch.

        Args:
            embeddings: Anchors, shape (N, d); they need not be normalised.
            labels: One integer per anchor: its class, its source instance or its pair; a tensor, a
                list or an array.
            indices_tuple: What a miner found, instead of labels: triplets (anchors, positives,
                negatives), or pairs (a1, p, a2, n), where every positive of an anchor goes with
                every negative of it. What is listed twice counts once.
            ref_emb: References, shape (M, d), if they are other samples than the anchors.
            ref_labels: One integer per reference.
            temperature: τ of this call instead of the loss's own (ε of IOT and Fused-Gromov, the
                regularisation of DBOT: what divides the similarities); a number, or a tensor of
                one element that receives its gradient.
            ref_index: Where anchors are among the references, as in a memory or a gathered batch:
                the reference that each anchor is, −1 for none, to leave these pairs out.
            pairs: Instead of labels, a matrix W, shape (N, M), or (N, N) within one set: W_ij > 0
                is a positive of anchor i with that weight, 0 a negative; the anchor itself is
                neither. Bools or non-negative numbers, without a gradient; of one process alone.
            weights: What each anchor counts, shape (N,), non-negative, without a gradient: its mass
                in the target is multiplied by it, and that of all is one again. A mean over anchors
                is a weighted mean; a plan follows with ``marginals="target"``.

        Returns:
            A scalar, float32 or float64.
        """
        given = embeddings, labels, indices_tuple, ref_emb, ref_labels, ref_index, pairs, weights
        return self.of_call(Call(*given), temperature)

    if TYPE_CHECKING:  # for editors and type checkers
        __call__ = forward

    def of_call(
        self, call: Call, temperature: float | Tensor | None, *, both: bool = False
    ) -> Tensor:
        """The loss of a call; or, of ``both`` ways, the mean of both directions."""
        if traced():
            return operator.apply(self, self._number, call, temperature, both)
        return self.run(call, temperature, both)

    @never_compiled
    def run(self, call: Call, temperature: float | Tensor | None, both: bool) -> Tensor:
        """``of_call``, uncompiled."""
        self.__dict__["_last"] = None  # past the slower __setattr__ of settings
        gathered = None
        processes = None if self.group is None else Processes.of(self.group)
        if processes is not None:
            call, gathered = self._gather(processes, call, temperature)
        call.check_embeddings()
        device, host = call.embeddings.device, on_host(call.embeddings)
        later = Deferred(self.check == "full")
        scale = self._scale(temperature, later)
        # What the host takes the scale to be: its value, or the one that was last read.
        held = isinstance(scale, Tensor) and not on_host(scale)
        known = self._known if held else number_of(scale)
        # Half precision cannot hold a plan: the loss is computed in float32 also under autocast.
        with ieee_products(device):
            batch = check_batch(
                call,
                scale,
                later,
                unit_length=self.unit_length,
                known_temperature=known,
                sharp=known is not None and self._product(known) < 1 / SHARP,
                gathered=gathered,
            )
            needs = [*self._needs(batch), *(self._needs(batch.mirrored()) if both else ())]
            compute = self.compute_both if both else self.compute
            if host:
                missing = next((what for lacking, what in needs if lacking), None)
                loss, seen = self._nothing(batch, missing) if missing else (compute(batch), batch)
                if later.full and not math.isfinite(number_of(loss)):
                    raise ValueError(
                        f"the loss is {number_of(loss)}: its costs exceed the range of "
                        f"{loss.dtype}, use a larger temperature or a shaping that grows less"
                    )
            else:
                loss, seen = self._on_device(compute, batch, needs, later)
        if seen is not None:
            seen = seen.changed(Tensor.detach, gathered=None, flags=[])
        self.__dict__["_last"] = seen
        return loss

    def _on_device(
        self, compute: Compute, batch: Batch, needs: Sequence[Need], later: Deferred
    ) -> tuple[Tensor, Batch | None]:
        """Compute first; then, with ``check="full"``, read all flags at once."""
        flags = [torch.as_tensor(lacking, device=batch.anchors.device) for lacking, _ in needs]
        missing = torch.stack(flags).any()
        if self.empty == "zero":
            batch = batch.changed(lambda values: torch.where(missing, values.detach(), values))
        elif later.full:
            errors = [partial(self._nothing, batch, what) for _, what in needs]
            later.flags += zip(flags, errors, strict=True)
        instead = 0.0 if self.empty == "zero" else torch.nan
        loss = torch.where(missing, instead, compute(batch))
        if not later.full:
            return loss, batch
        learnt = [batch.temperature] if isinstance(batch.temperature, Tensor) else []
        lost = torch.stack([missing, *batch.flags]).any()
        processes = None if batch.gathered is None else batch.gathered.processes
        nothing, again, *known = later.raise_first(processes, missing, lost, *learnt)
        if known:
            self.__dict__["_known"] = known[0]
            batch = replace(batch, known_temperature=known[0])
        if nothing:
            return loss, None
        if again:  # digits were lost: once more, by rows
            batch = replace(batch, fast=False, flags=[])
            loss = compute(batch)
        return loss, batch

    def _nothing(self, batch: Batch, missing: str) -> tuple[Tensor, None]:
        """An error, or a loss of 0 with a gradient path."""
        if self.empty == "raise":
            raise ValueError(
                f"the batch of {len(batch.anchors)} samples has no {missing}: use larger or "
                'class-balanced batches, or empty="zero" to skip such batches'
            )
        assert batch.references is not None
        return ((batch.anchors.sum() + batch.references.sum()) * 0.0).to(batch.dtype), None

    def _gather(
        self, processes: Processes, call: Call, temperature: float | Tensor | None
    ) -> tuple[Call, Gathered]:
        """The call with the samples of all processes, whose losses must have equal settings."""
        settings = {"loss": type(self).__name__}
        for name, value in vars(self).items():
            if not (name.startswith("_") or name in ("training", "group", "sweeps", self.scale)):
                settings[name] = getattr(value, "__qualname__", f"{value}")
        if "sweeps" in vars(self):
            settings |= {name: f"{value}" for name, value in vars(self.sweeps).items()}
        if self.scale is not None:
            scale = getattr(self, self.scale) if temperature is None else temperature
            held = isinstance(scale, Tensor) and not on_host(scale)
            settings[self.scale] = "a tensor on a device" if held else f"{number_of(scale)!r}"

        def checked() -> Call:
            later = Deferred(self.check == "full")
            self._scale(temperature, later)
            return check_call(call, later, unit_length=self.unit_length)

        return gather_call(processes, call, checked, settings)

    def _scale(self, temperature: float | Tensor | None, later: Deferred) -> float | Tensor:
        """What divides the similarities in a call that gives this temperature, or none."""
        if self.scale is None:
            if temperature is not None:
                raise ValueError(
                    f"temperature={temperature} has no meaning for {type(self).__name__}, a loss "
                    "without one: leave it out"
                )
            return 1.0
        name, value = "temperature", temperature
        if value is None:
            name, value = self.scale, getattr(self, self.scale)
        if not (isinstance(value, float) and 0 < value < math.inf):
            checks.positive_number(name, value, later)
        return value if isinstance(value, Tensor) else float(value)

    def _needs(self, batch: Batch) -> Iterator[Need]:
        """What a batch needs, each with whether it is missing; an error where it means nothing."""
        positives, triplets = batch.relation.totals
        yield positives == 0, "positive pair"
        if self.needs_negatives:
            missing = "negative pair for an anchor that has a positive"
            yield triplets == 0, missing

    def _parts(self, batch: Batch) -> Sequence[Part]:
        """The plans of a loss that is a sum of divergences."""
        raise NotImplementedError(f"{type(self).__name__} needs a method compute(batch)")

    @property
    def one_product(self) -> bool:
        """Whether both directions share one similarity product: so they do if parts are all."""
        return type(self).compute is ContrastiveLoss.compute

    def compute(self, batch: Batch) -> Tensor:
        """The loss of a checked batch that has what it needs."""
        return coupled.loss(batch, self.sweeps, self._parts)

    def compute_both(self, batch: Batch) -> Tensor:
        """The mean of that of two sets and of that with anchors for references."""
        if self.one_product:
            return coupled.loss(batch, self.sweeps, self._parts, both=True)
        return (self.compute(batch) + self.compute(batch.mirrored())) / 2

    def diagnostics(self) -> dict[str, float]:
        """What happened in the last call, as numbers for a logger.

        ``loss``, ``sharpness`` and, of plans, ``sweeps`` and ``marginal_error`` (L1; the larger one
        of two plans). ``VICReg`` has its three terms instead.

        This takes the time of a call. A call keeps its unit vectors, N·d numbers, for it until the
        next call; copies and pickles do not.

        Raises:
            ValueError: If there was no call, or the last one found nothing to learn from.

        Example:
            >>> from tricouple import NegMMIOT
            >>> criterion = NegMMIOT()
            >>> loss = criterion(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
            >>> criterion.diagnostics()["sweeps"]
            10
        """
        if self._last is None:
            raise ValueError(
                "diagnostics() is about the last call, and there was none with something to learn"
            )
        device = self._last.anchors.device
        with ieee_products(device), torch.no_grad():
            return self._diagnose(self._last)

    def _diagnose(self, batch: Batch) -> dict[str, float]:
        plans: list[tuple[int, float]] = []
        token = watched.set(plans)
        try:
            found = {"loss": float(self.compute(batch))}
        finally:
            watched.reset(token)
        if self.scale is not None:
            found["sharpness"] = 1 / self._product(batch.temperature)
        if plans:
            found["sweeps"], found["marginal_error"] = map(max, zip(*plans, strict=True))
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles do not carry the last batch, nor the number."""
        state = self.__dict__ | {"_last": None}
        del state["_number"]
        return state
