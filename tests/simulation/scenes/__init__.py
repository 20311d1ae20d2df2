"""Scenes: a few runs do one thing after the other, each by itself, where all that must be prompt can be held to it.

In the usual runs everything goes on at once. There a slip is often mended by somebody else's work, or hidden by the
weather; and what must happen soon holds there only while nothing takes time. A scene has its own processes, settings,
types and checks, and what is no part of it does not happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jobs_service.store.base import Limits
from jobs_service.testing import Choices, World
from tests.simulation.machine import Machine
from tests.simulation.scenes.listening import Arrivals, Bursts, Changers, Returners
from tests.simulation.scenes.losing import Graves, Heaps, Losses, Patience, Restores
from tests.simulation.scenes.stage import Scene
from tests.simulation.scenes.waking import Alarms, Collisions, Expiries, Jumps, Wakes

if TYPE_CHECKING:
    from tests.simulation.run import Run

_WITH_SCENES: Final = 0.04
"""The share of runs that are scenes."""
_MOST: Final = 5
"""How many scenes there are in such a run."""
_EMBEDDED: Final = 0.2
"""The share of these runs whose store is an embedded one, as some scenes need it."""

SCENES: Final[tuple[type[Scene], ...]] = (
    Bursts,
    Arrivals,
    Changers,
    Returners,
    Losses,
    Patience,
    Heaps,
    Restores,
    Wakes,
    Alarms,
    Jumps,
    Collisions,
    Expiries,
    Graves,
)
"""Every scene there is. A new one is a class and a place here."""


def has_scenes(choices: Choices) -> bool:
    """Draw whether a run is one of scenes."""
    return choices.stream("in scenes").random() < _WITH_SCENES


def scenes_machine(choices: Choices, world: World, limits: Limits) -> Machine | None:
    """Draw whether the scenes are on an embedded store; nothing is slow there."""
    if choices.stream("store of scenes").random() >= _EMBEDDED:
        return None
    machine = Machine(world, limits)
    machine.map_size = None
    return machine


async def play(run: Run) -> None:
    """Play some scenes, one after the other."""
    random = run.world.choices.stream("scenes")
    possible = [kind for kind in SCENES if kind.embedded == (run.machine is not None)]
    for number, kind in enumerate(random.sample(possible, min(len(possible), _MOST))):
        if run.world.choices.operation():
            run.world.note(f"a scene of {kind.name}")
            # No service has watched over anything between two scenes.
            run.quiet.slow_down(0.0)
            scene = kind(run, number)
            await scene.play()
            scene.check()


__all__ = ["SCENES", "Scene", "has_scenes", "play", "scenes_machine"]
