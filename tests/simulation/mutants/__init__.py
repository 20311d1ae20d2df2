"""Deliberate defects, to show that the simulation finds such: a module per floor, a function for each."""

from __future__ import annotations

from tests.simulation.mutants import actors, bounds, layer, runner, service, stores, supervision
from tests.simulation.mutants.mutant import Mutant

ALL: tuple[Mutant, ...] = (
    *layer.ALL,
    *bounds.ALL,
    *actors.ALL,
    *service.ALL,
    *supervision.ALL,
    *stores.ALL,
    *runner.ALL,
)
"""Every mutant there is."""

__all__ = ["ALL", "Mutant"]
