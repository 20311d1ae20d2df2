"""Defects of supervisors and actors."""

from __future__ import annotations

from jobs_service.service.tree import ServiceTree
from jobs_service.supervision.actor import Actor
from jobs_service.supervision.dynamic import DynamicSupervisor
from jobs_service.supervision.supervising import Supervising
from tests.simulation.mutants.mutant import Defect, Mutant, changed


def only_the_dead_child_is_restarted() -> Defect:
    """The tree's strategy is one for one: the type server goes on with supervisors that have died."""
    return changed(ServiceTree._supervisor, ("strategy=Strategy.REST_FOR_ONE", "strategy=Strategy.ONE_FOR_ONE"))


def nothing_is_restarted() -> Defect:
    """A child that has died stays dead."""
    return changed(Supervising._live, ("if child.life == life:", "if False:"))


def the_death_of_a_linked_task_is_not_noticed() -> Defect:
    """An actor goes on without its sampler or its type monitor."""
    return changed(Actor._linked_ended, ("self._kill(cause)", "pass"))


def stopped_children_stay_known() -> Defect:
    """A dynamic supervisor never forgets a child that it has stopped: none of that name can be started again."""
    return changed(DynamicSupervisor._left, ("self._gone(child)", "pass"))


ALL = (
    Mutant(only_the_dead_child_is_restarted, "stormy", ("inspectors",)),
    Mutant(nothing_is_restarted, "stormy", ("creators", "workers", "followers", "subscribers")),
    Mutant(the_death_of_a_linked_task_is_not_noticed, "stormy", ("creators", "workers", "followers", "subscribers")),
    Mutant(stopped_children_stay_known, workloads=("creators", "workers", "subscribers", "inspectors")),
)
