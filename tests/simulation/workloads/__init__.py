"""What goes on in a simulated world: one small class per kind of user.

A new one is a class and a line here; unless it is in ALL, `drawing.py` says in which runs it takes part.
"""

from __future__ import annotations

from tests.simulation.workloads.base import Workload
from tests.simulation.workloads.bulk import Bulk
from tests.simulation.workloads.bystanders import Lookers, TypeKeepers, Waiters
from tests.simulation.workloads.composers import Composers, Plain
from tests.simulation.workloads.creators import Batches, Cancelers, Creators, Resubmitters
from tests.simulation.workloads.crowds import Crowds, Deserters, Heartbeats, Idlers, Racers, Visitors
from tests.simulation.workloads.drills import Drills, Weavers
from tests.simulation.workloads.foremen import Foremen
from tests.simulation.workloads.forgetters import Forgetters
from tests.simulation.workloads.hoarders import Hoarders
from tests.simulation.workloads.operators import Operators
from tests.simulation.workloads.overseers import Closers, Followers, Inspectors, Keepers, Measurers, Overseers, Stoppers
from tests.simulation.workloads.planners import Planners, Quitters, Travelers
from tests.simulation.workloads.readers import Readers
from tests.simulation.workloads.runners import Handlers, Leavers, Pausers, Retainers
from tests.simulation.workloads.schedulers import Schedulers
from tests.simulation.workloads.speakers import Speakers
from tests.simulation.workloads.subscribers import Subscribers
from tests.simulation.workloads.transactions import Transactions
from tests.simulation.workloads.vandals import Vandals
from tests.simulation.workloads.workers import Workers

ALL: tuple[type[Workload], ...] = (
    Creators,
    Batches,
    Cancelers,
    Resubmitters,
    Workers,
    Subscribers,
    Transactions,
    TypeKeepers,
    Lookers,
    Waiters,
    Crowds,
    Idlers,
    Racers,
    Visitors,
    Deserters,
    Heartbeats,
    Overseers,
    Inspectors,
    Stoppers,
    Keepers,
    Followers,
    Measurers,
    Closers,
    Readers,
    Composers,
    Plain,
)
"""What may go on in every run, but for small ones that look at something else."""

OF_RUNNERS: tuple[type[Workload], ...] = (Handlers, Pausers, Retainers, Leavers, Speakers)
"""What goes on in some runs beside that, because it takes its time."""

OF_LISTED: tuple[type[Workload], ...] = (Operators,)
"""What goes on in those of these runs in which processes are listed."""

OF_LARGE: tuple[type[Workload], ...] = (Bulk,)
"""What goes on in runs with large things beside that."""

OF_SOME: tuple[type[Workload], ...] = (Planners, Quitters, Travelers)
"""What goes on in some runs beside that, among the few that meet each other there."""

OF_DAMAGE: tuple[type[Workload], ...] = (Vandals,)
"""What goes on in some runs beside that: records that cannot be read."""

OF_SMALL_STORES: tuple[type[Workload], ...] = (Hoarders,)
"""What goes on beside that in runs on a store that is full sooner or later."""

OF_LEAVING: tuple[type[Workload], ...] = (Forgetters,)
"""What goes on in some runs beside that: jobs that leave with their end."""

OF_DRILLS: tuple[type[Workload], ...] = (Drills,)
"""What alone goes on in a few runs: small things whose outcome is known exactly."""

OF_FOCUSED: tuple[type[Workload], ...] = (
    Foremen,
    Weavers,
)
"""What goes on only in small runs that look at one thing."""

OF_SCHEDULES: tuple[type[Workload], ...] = (Schedulers,)
"""What goes on in runs of its own alone, when it is named: schedules that are made at runtime."""

NOT_IN_ALL: tuple[type[Workload], ...] = (
    *OF_RUNNERS,
    *OF_LISTED,
    *OF_LARGE,
    *OF_SOME,
    *OF_DAMAGE,
    *OF_LEAVING,
    *OF_DRILLS,
    *OF_FOCUSED,
    *OF_SCHEDULES,
)
"""What takes part in some runs only, and wherever it is named; but for those that need an embedded store."""

__all__ = [
    "ALL",
    "NOT_IN_ALL",
    "OF_DAMAGE",
    "OF_DRILLS",
    "OF_FOCUSED",
    "OF_LARGE",
    "OF_LEAVING",
    "OF_LISTED",
    "OF_RUNNERS",
    "OF_SCHEDULES",
    "OF_SMALL_STORES",
    "OF_SOME",
    "Workload",
]
