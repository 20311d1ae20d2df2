"""Deliberate defects, to show that the simulation finds such: a module per floor, a function for each."""

from __future__ import annotations

from tests.simulation.mutants import (
    actors,
    bounds,
    counts,
    layer,
    leaving,
    model_slips,
    processes,
    runner,
    service,
    slips_actors,
    slips_layer,
    slips_runner,
    slips_service,
    slips_stores,
    stores,
    supervision,
    unseen_1,
    unseen_2,
    unseen_3,
    unseen_4,
)
from tests.simulation.mutants.mutant import Mutant

ALL: tuple[Mutant, ...] = (
    *layer.ALL,
    *counts.ALL,
    *bounds.ALL,
    *actors.ALL,
    *service.ALL,
    *supervision.ALL,
    *stores.ALL,
    *runner.ALL,
    *processes.ALL,
    *model_slips.ALL,
    *leaving.ALL,
)
"""Those by whoever wrote the checks."""

SLIPS: tuple[Mutant, ...] = (
    *slips_layer.ALL,
    *slips_actors.ALL,
    *slips_service.ALL,
    *slips_runner.ALL,
    *slips_stores.ALL,
)
"""Slips that were made by somebody who has not read the checks: their score tells what the simulation sees."""

EVERY: tuple[Mutant, ...] = (*ALL, *SLIPS)
"""All that are scored together: not those of UNSEEN."""

UNSEEN: tuple[Mutant, ...] = (*unseen_1.ALL, *unseen_2.ALL, *unseen_3.ALL, *unseen_4.ALL)
"""Slips by somebody who has read neither checks nor other slips. Not among EVERY, so that nobody tunes to them."""

__all__ = ["ALL", "EVERY", "SLIPS", "UNSEEN", "Mutant"]
