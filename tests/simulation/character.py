"""What sort of run a run is: one of the usual mix, or a small one in which only some things happen; and its weather."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from jobs_service.store.base import Limits
from jobs_service.store.commit_marks import LIFETIME
from jobs_service.testing import Choices, Plan, World
from tests.simulation.drawing import draw_machine
from tests.simulation.drilling import draw_drills, let_nothing_go_wrong
from tests.simulation.focus import Focus, draw_focus
from tests.simulation.length import Length, draw_length, of_drills
from tests.simulation.machine import KEY, Machine
from tests.simulation.sizes import Sizes, draw_sizes
from tests.simulation.weather import Weather, draw_weather, unsure

_WARNINGS: Final = 30
_KEPT_EVENTS: Final = 400


class Character(NamedTuple):
    """What sort of run it is.

    Attributes:
        drills: how many small things are done where nothing else is; 0 in all other runs.
        focus: what the run looks at only.
        workloads: the names of those that take part; None for all.
        weather: that it has.
        length: how long it is.
        sizes: how large things are.
        limits: of transactions.
    """

    drills: int
    focus: Focus
    workloads: Sequence[str] | None
    weather: Weather
    length: Length
    sizes: Sizes
    limits: Limits

    def world(self, plan: Plan, later: Random, rates: Mapping[str, float], log_level: int) -> World:
        """Make the world of such a run.

        Args:
            plan: of the run.
            later: where what is left is drawn from.
            rates: of kinds of fault, in place of those that the weather has.
            log_level: below that of warnings, all events are kept.
        """
        focus, weather = self.focus, self.weather
        world = World(
            plan,
            rates={**weather.rates, **focus.rates, **rates},
            disorder=weather.disorder,
            latency=weather.latency if focus.latency is None else focus.latency,
            limits=self.limits,
            most_steps=self.length.most_steps,
            log_level=log_level,
            kept_events=None if log_level < _WARNINGS else _KEPT_EVENTS,
        )
        # Marks are old so soon that some are removed, and yet younger than they ever were when somebody looks for them.
        world.cluster.mark_lifetime = later.choice([8, 40, LIFETIME])
        world.note(f"{weather}, {self.limits}, marks live for {world.cluster.mark_lifetime} versions")
        return world

    def machine(self, world: World) -> Machine | None:
        """Draw whether the store is an embedded one."""
        choices = Choices(world.choices.plan)
        may_be = not self.length.long and (self.sizes.limits is None or self.limits.key <= KEY)
        machine = None
        if self.workloads is None:
            machine = draw_machine(world, choices.stream("store"), self.limits, may_be=may_be)
        if self.drills:
            let_nothing_go_wrong(world.choices, machine)
        return machine


def draw_character(
    plan: Plan, random: Random, later: Random, profile: str | None, workloads: Sequence[str] | None
) -> Character:
    """Draw what sort of run a run is.

    Args:
        plan: of the run.
        random, later: where that is drawn from which all runs have.
        profile, workloads: what somebody has chosen; None to have it drawn.
    """
    choices = Choices(plan)
    drills = draw_drills(choices, workloads)
    focus = Focus(workloads, "calm") if drills else draw_focus(choices, workloads, profile)
    is_small = focus.workloads is not workloads or drills > 0
    weather = draw_weather(random, later, focus.profile)
    if focus.profile is None:
        weather = unsure(choices.stream("unsure"), weather)
    small = focus.sizes or Sizes()
    sizes = small if is_small else draw_sizes(choices.stream("sizes"))
    limits = random.choice([Limits(), Limits(), Limits(transaction=random.choice([8_000, 20_000]))])
    return Character(
        drills,
        focus,
        focus.workloads,
        weather,
        of_drills() if drills else Length() if is_small else draw_length(choices),
        sizes,
        focus.limits or sizes.limits or limits,
    )
