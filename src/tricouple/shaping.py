"""ψ: how a triplet's margin becomes its cost."""

from __future__ import annotations

SHAPINGS = ("linear",)
"""Names of the cost-shaping functions: ``linear`` is ψ(t) = −t."""
