"""The one call that all losses share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, count
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn

from tricouple import checks
from tricouple.checks import Labels
from tricouple.distributed import Group, Team, check_group
from tricouple.losses import operator
from tricouple.losses.batch import Batch, prepare, require_all
from tricouple.losses.call import Call, IndicesTuple, gathered, located
from tricouple.losses.diagnostics import diagnose
from tricouple.numeric import ieee_products, never_compiled, on_host, traced
from tricouple.ot.engine import Sweeps

DEFAULT_SHARPNESS = 10.0

# By how much a temperature on a device may have fallen without being read (docs/accelerators.md).
_FALL = 4.0

_numbers = count()


def as_number(setting: float | Tensor) -> float:
    """A setting that may be a tensor, and may ask for a gradient."""
    return float(setting.detach() if isinstance(setting, Tensor) else setting)


class ContrastiveLoss(nn.Module, ABC):
    """A loss of embeddings and their identities; subclasses give ``compute``.

    All losses have first derivatives. Second ones (gradient penalties, Hessian-vector products)
    ``VICReg``, ``InvaSpread`` and ``DBOT`` have; the gradients of couplings and of ``InfoNCE`` are
    computed by hand, and differentiating them again raises a ``RuntimeError``.

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
    unit_length = True  # whether the loss sees unit vectors, or embeddings as they are
    scale: str | None = None  # the setting that divides similarities: τ, or what stands for it
    shown: tuple[str, ...] = ()  # the settings that its text names
    paper_sharpness: float | None = None  # c of the paper's settings, if it states them
    sweeps: Sweeps | None = None  # how its plan is solved, if it is a coupling
    _expected: float | None = None  # what a scale that is not read is taken to be at least

    def __init__(self, *, empty: str = "raise", check: str = "full", group: Group = None) -> None:
        super().__init__()
        if group is not None:
            check_group(group)
        checks.one_of("empty", empty, ("raise", "zero"))
        checks.one_of("check", check, ("full", "shapes"))
        self.empty = empty
        self.check = check
        self.group = group
        self._last: Batch | None = None
        self._enlist()

    def _enlist(self) -> None:
        """Take a number by which graphs find this loss."""
        self._number = next(_numbers)
        operator.living[self._number] = self

    def _set_scale(
        self, value: float | Tensor | None, sharpness: float | str | None, epsilon: float = 1.0
    ) -> None:
        """Take τ, or what stands for it, as given; else from the sharpness, 1/(cε)."""
        assert self.scale is not None
        if value is None:
            if sharpness == "paper":
                sharpness = self.paper_sharpness
                if sharpness is None:
                    raise ValueError(
                        'sharpness="paper": the paper states none for '
                        f"{type(self).__name__}, give a number"
                    )
            number = DEFAULT_SHARPNESS if sharpness is None else sharpness
            checks.positive_number("sharpness", number)  # type: ignore[arg-type]
            value = 1 / float(number) / epsilon
        elif sharpness is not None:
            raise ValueError(
                f"sharpness={sharpness} and {self.scale}={value} were both given, but one follows "
                "from the other: leave one out"
            )
        checks.positive_number(self.scale, value)
        setattr(self, self.scale, value)
        self._expected = as_number(value) / _FALL

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
        return 1 / (as_number(getattr(self, self.scale)) * self._regularisation)

    @property
    def _regularisation(self) -> float:
        """The ε beside τ, where there are both."""
        return 1.0

    def __setattr__(self, name: str, value: Any) -> None:
        """A tensor given as a setting is a buffer, which ``.to()`` moves; a numpy number a number.

        One that takes a number's place later, such as a learnt temperature of each step, is not.
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
        """Its settings, on one line; those of the sweeps have names of their own."""
        parts = []
        for name in self.shown:
            value = getattr(self, name)
            text = "learnable" if isinstance(value, nn.Parameter) else format(value)
            text = repr(value) if isinstance(value, str) else text
            parts.append(text if name == "sweeps" else f"{name}={text}")
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
    ) -> Tensor:
        """Compute the loss of a batch.

        Args:
            embeddings: Anchors, shape (N, d); they need not be normalised.
            labels: An integer identity for each anchor: its class, its source instance or its pair;
                a tensor, a list or an array.
            indices_tuple: What a miner found, instead of labels: triplets (anchors, positives,
                negatives), or pairs (a1, p, a2, n), where every positive of an anchor goes with
                every negative of it. What is listed twice counts once.
            ref_emb: References, shape (M, d), if they are other samples than the anchors.
            ref_labels: An identity for each reference.
            temperature: τ of this call instead of the loss's own (ε of IOT and Fused-Gromov, the
                regularisation of DBOT: what divides the similarities); a number, or a tensor of
                one element that receives its gradient.
            ref_index: Where anchors are among the references, as in a memory or a gathered batch:
                the reference that each anchor is, so that they do not meet themselves. It may be
                −1 for an anchor that is none, in couplings for all of them or for no one.

        Returns:
            A scalar, float32 or float64.
        """
        call = Call(embeddings, labels, indices_tuple, ref_emb, ref_labels, ref_index)
        if traced():
            return operator.apply(self, self._number, call, temperature)
        return self.run(call, temperature)

    @never_compiled
    def run(self, call: Call, temperature: float | Tensor | None, *, both: bool = False) -> Tensor:
        """The loss of a call.

        Or, of ``both`` ways, half of that across two sets and half of that with anchors for
        references: on the host; samples of several processes are gathered once.
        """
        shard = None
        self.__dict__["_last"] = None  # no setting, for which a module takes its time
        team = None if self.group is None else Team.of(self.group)
        if team is not None:
            # What a device holds is looked at with all else, once.
            call, shard = gathered(team, call, lambda: self._scale(temperature, checks.Doubts()))
        checks.embeddings(call.embeddings, call.ref_emb)
        device = call.embeddings.device
        reads = self._reads and on_host(call.embeddings)
        doubts = checks.Doubts() if self._reads and not reads else None
        temperature = self._scale(temperature, doubts)
        # Half precision cannot hold a coupling: the loss is a float32 island under autocast.
        with torch.autocast(device.type, enabled=False), ieee_products(device):
            try:
                unit = self.unit_length
                batch = prepare(call, temperature, unit_length=unit, read=reads, doubts=doubts)
            except ValueError as error:
                if shard is None:
                    raise
                raise ValueError(located(str(error), shard)) from error
            if shard is not None:
                batch = replace(batch, shard=shard)
            self._check_setting(batch)
            own = None if self.sweeps is None else batch.own
            if doubts is not None and own is not None:
                doubts.add((own < 0).any(), partial(require_all, own))
            sides = (batch, batch.mirrored()) if both else (batch,)
            missing = self._missing(sides, doubts)
            if isinstance(temperature, Tensor) and not on_host(temperature):
                known = self._expected if doubts is None else doubts.known
                batch = replace(batch, known_temperature=known)
            if missing is None or isinstance(missing, Tensor):
                return self._computed(batch, missing, self.compute_both if both else self.compute)
        if self.empty == "zero":
            zero = (batch.anchors.sum() + batch.references.sum()) * 0.0
            return zero.to(batch.dtype)
        raise ValueError(
            f"the batch of {len(batch.anchors)} samples has no {missing}: use larger or "
            'class-balanced batches, or empty="zero" to skip such batches'
        )

    def _computed(
        self, batch: Batch, missing: Tensor | None, compute: Callable[[Batch], Tensor]
    ) -> Tensor:
        """The loss, and where nobody knows whether something is missing what the flag asks for."""
        if missing is not None and self.empty == "zero":
            batch = batch.stopped(missing)
        loss = compute(batch)
        self.__dict__["_last"] = batch.detached()
        if missing is None:
            return loss
        return torch.where(missing, 0.0 if self.empty == "zero" else torch.nan, loss)

    def diagnostics(self) -> dict[str, float | str]:
        """What happened in the last call, as plain numbers that any logger takes.

        ``sharpness``; of couplings ``sweeps`` and ``marginal_error`` (L1; of the worse of two
        plans); and ``repulsion_on_hardest_tenth``, the share of all repulsion of negatives that
        falls on the tenth of an anchor's negatives that are nearest to it, from the real gradient.
        A ``note`` if ψ is constant on all triplets. ``VICReg`` has its three terms instead.

        Nothing is computed before it is asked for: a call keeps its unit vectors (N·d numbers,
        no graph) until the next, copies and pickles do not. Asking costs about three calls and
        some N×M matrices; beyond 8192² pairs the share is left out.

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
        with torch.autocast(device.type, enabled=False), ieee_products(device):
            return self._diagnose(self._last)

    def _diagnose(self, batch: Batch) -> dict[str, float | str]:
        found: dict[str, float | str] = {}
        if self.scale is not None:
            found["sharpness"] = 1 / (as_number(batch.temperature) * self._regularisation)
        return found | diagnose(self.compute, batch)

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles do not carry the last batch."""
        return self.__dict__ | {"_last": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """They have numbers of their own."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._enlist()

    def _scale(
        self, temperature: float | Tensor | None, doubts: checks.Doubts | None = None
    ) -> float | Tensor:
        """What divides the similarities in a call that gives this temperature, or none."""
        if self.scale is None:
            if temperature is not None:
                raise ValueError(
                    f"temperature={temperature} has no meaning for {type(self).__name__}, a loss "
                    "without one: leave it out"
                )
            return 1.0
        if temperature is None:
            own: float | Tensor = getattr(self, self.scale)
            checks.positive_number(self.scale, own, read=self._reads, doubts=doubts)
            return own
        checks.positive_number("temperature", temperature, read=self._reads, doubts=doubts)
        return temperature if isinstance(temperature, Tensor) else float(temperature)

    @property
    def _reads(self) -> bool:
        """Whether checks may read values, and not shapes alone."""
        return self.check == "full"

    def _check_setting(self, batch: Batch) -> None:
        """Raise a ValueError where the loss has no meaning; most have one everywhere."""

    def _missing(
        self, batches: Sequence[Batch], doubts: checks.Doubts | None
    ) -> str | Tensor | None:
        """What is missing to learn from; a flag where that is not to be read from a device.

        There all doubts about values are settled with the same reading.
        """
        flags: list[Tensor] = []
        for lacking, what in chain.from_iterable(map(self._wanting, batches)):
            if isinstance(lacking, Tensor):
                flags.append(lacking)
                if doubts is not None:
                    doubts.add(lacking, what)
            elif lacking:
                return what
        if doubts is not None:
            return doubts.settle(batches[0].shard)
        return torch.stack(flags).any() if flags else None

    def _wanting(self, batch: Batch) -> Iterator[tuple[bool | Tensor, str]]:
        """What a batch needs, and whether it is without."""
        yield batch.relation.n_positives == 0, "positive pair"
        if self.needs_negatives:
            missing = "negative pair for an anchor that has a positive"
            yield batch.relation.n_triplets == 0, missing

    @abstractmethod
    def compute(self, batch: Batch) -> Tensor:
        """The loss of a checked batch that has what it needs."""

    def compute_both(self, batch: Batch) -> Tensor:
        """The mean of that of two sets and of that with anchors for references."""
        return (self.compute(batch) + self.compute(batch.mirrored())) / 2
