"""What a run draws at its beginning, beside its weather and its sizes: store, workloads, settings."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from jobs_service import JobType, Settings
from jobs_service.store.base import Limits
from jobs_service.testing import Choices, World
from tests.simulation.machine import Machine
from tests.simulation.workloads import (
    ALL,
    OF_DAMAGE,
    OF_DRILLS,
    OF_FOCUSED,
    OF_LARGE,
    OF_LEAVING,
    OF_LISTED,
    OF_RUNNERS,
    OF_SCHEDULES,
    OF_SMALL_STORES,
    OF_SOME,
    Workload,
)
from tests.simulation.workloads.composers import Plain
from tests.simulation.workloads.operators import Operators

if TYPE_CHECKING:
    from tests.simulation.run import Run

_EMBEDDED: Final = 0.12
"""The share of runs, of those that are neither long nor have long keys, whose store is an embedded one."""

_LEAVING: Final = 0.25
"""The share of types whose jobs leave with their end, until somebody has them kept."""

_WITH_DAMAGE: Final = 0.15
"""The share of runs in which some records cannot be read."""

_WITH_RUNNERS: Final = 0.25
"""The share of runs in which handlers run jobs."""

_WITH_PROCESSES: Final = 0.15
"""The share of runs in which the processes with handlers are listed in the store."""

_HEARTBEAT: Final = 2.0
"""Seconds between two heartbeats of these."""

_MOST_PERIOD: Final = 60.0
"""Seconds between two looks of a process that rarely looks at the types by itself."""

_WITH_ALL: Final = 0.3
"""The share of runs in which every workload takes its steps."""

_SWARMS: Final = (0.15, 0.3, 0.6)
"""In the other runs, the share of the workloads that do."""


def draw_machine(world: World, random: Random, limits: Limits, *, may_be: bool) -> Machine | None:
    """Draw whether the store is an embedded one.

    Args:
        world: of the run.
        random: where it is drawn from.
        limits: of transactions.
        may_be: whether it can be one at all.
    """
    if random.random() >= _EMBEDDED or not may_be:
        return None
    machine = Machine(world, limits)
    world.choices.rates |= machine.draw_rates()
    return machine


def draw_leaving(random: Random, types: Sequence[JobType]) -> dict[JobType, dict[str, float | None]]:
    """Draw the types whose jobs are not kept, and how long they are kept."""
    drawn = {type: {"keep": 0.0, "keep_failed": random.choice([0.0, None])} for type in types}
    return {type: kept for type, kept in drawn.items() if random.random() < _LEAVING}


def draw_heartbeat(choices: Choices, wanted: Sequence[str] | None) -> float:
    """Draw whether processes are listed: seconds between two of their heartbeats, 0.0 if they are not."""
    is_listed = choices.stream("with processes").random() < _WITH_PROCESSES
    return _HEARTBEAT if is_listed or (wanted is not None and Operators.name in wanted) else 0.0


def draw_kinds(
    run: Run, wanted: Sequence[str] | None, *, is_listed: bool, has_some: bool, leaves: bool
) -> list[type[Workload]]:
    """Draw what goes on in a run.

    Args:
        run: which is long or not, and has its sizes and its machine.
        wanted: names of the workloads that there may be; None for all.
        is_listed: whether processes are listed.
        has_some: whether those take part who are not in all runs.
        leaves: whether there are types whose jobs leave with their end.
    """
    if run.drills:
        return [*OF_DRILLS]
    choices, machine, is_chosen = run.world.choices, run.machine, wanted is not None
    more = choices.stream("with runners").random() < _WITH_RUNNERS
    damaged = choices.stream("with damage").random() < _WITH_DAMAGE
    kinds = (
        *ALL,
        *(OF_LARGE if run.sizes.large or is_chosen else ()),
        # Hours of handlers take a minute.
        *(OF_RUNNERS if (more and not run.long) or is_chosen else ()),
        *(OF_LISTED if is_listed and ((more and not run.long) or is_chosen) else ()),
        *(OF_DAMAGE if damaged or is_chosen else ()),
        *(OF_SMALL_STORES if machine is not None and machine.map_size is not None else ()),
        *(OF_SOME if has_some or is_chosen else ()),
        *(OF_LEAVING if leaves or is_chosen else ()),
        *(OF_DRILLS if is_chosen else ()),
        *(OF_FOCUSED if is_chosen else ()),
        *(OF_SCHEDULES if is_chosen else ()),
    )
    # Only a cluster's transactions are shared.
    possible = [kind for kind in kinds if machine is None or kind is not Plain]
    return [kind for kind in possible if wanted is None or kind.name in wanted]


def draw_weights(random: Random, workloads: Sequence[Workload], *, all_of_them: bool) -> list[float]:
    """Draw how often each workload takes a step: in most runs only some of them do, and meet each other often.

    Groce et al., Swarm Testing, ISSTA 2012: what is left out can no longer hide what the rest would show.
    """
    usual = [float(each.weight) for each in workloads]
    if all_of_them or random.random() < _WITH_ALL:
        return usual
    kept = random.choice(_SWARMS)
    drawn = [random.choice([1.0, 3.0]) if random.random() < kept else 0.0 for _ in usual]
    factors = [1.0 if each.always else factor for each, factor in zip(workloads, drawn, strict=True)]
    weights = [weight * factor for weight, factor in zip(usual, factors, strict=True)]
    return weights if sum(weights) else usual


def draw_settings(run: Run, random: Random, later: Random, *, heartbeat: float, rarely: bool) -> Settings:
    """Draw the settings of a process.

    Args:
        run: which is long or not, and has its sizes and its machine.
        random, later: where they are drawn from.
        heartbeat: seconds between two; 0.0 for none.
        rarely: whether it rarely looks at the types by itrun.
    """
    choose = random.choice
    changed = {
        "notify_holdoff": choose([0.0, 0.05]),
        "type_check_period": choose([5.0, 15.0]) if not run.long else 15.0,
        "expiry_check_period": 3.0,
        "type_idle_after": choose([0.5, 2.0, 10.0]),
        "activity_samples": choose([4, 4, 8]),
        "activity_batch": choose([1, 3, 1000]),
        # Many jobs that change together are told of one by one only where that takes no time to speak of.
        "notifier_batch": choose([1, 3, 1000] if not run.sizes.large else [10, 50, 1000]),
        "pending_batch": choose([1, 3, 100]),
        "add_batch": later.choice([1, 3, 1000, 1000]),
        "transaction_timeout": choose([3.0, 10.0]),
        "process_heartbeat": heartbeat,
    }
    if run.machine is not None:
        changed |= run.machine.draw_settings()
    if rarely:
        changed |= {"type_check_period": _MOST_PERIOD, "retry_backoff_max": 0.2}
    return run.world.settings.model_copy(update=changed)
