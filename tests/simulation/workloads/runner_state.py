"""What is known of the jobs that handlers run, and of the handlers: their workload notes it, and its checks compare it.

Their types are theirs alone, so that everything that happens to these jobs is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

from jobs_service import JobType, RunningJob
from jobs_service.testing import Process
from tests.simulation.focus import LANE_CRASHES
from tests.simulation.weather import RARELY
from tests.simulation.workloads.handled import Accepted, Held

if TYPE_CHECKING:
    from tests.simulation.run import Run

ONE_SHOT: Final[JobType] = "handled"
CONTINUOUS: Final[JobType] = ("continuous", 1)

_KEPT: Final = 7 * 86_400.0


@dataclass(frozen=True)
class Order:
    """What the handlers' jobs carry.

    Attributes:
        call: the number of the call that enqueued it.
        step: how far its handler has come.
        pad: makes it as large as the run wants.
    """

    call: int
    step: int = 0
    pad: str = ""


@dataclass
class Asked:
    """A call by which somebody changes a setting of a type.

    Attributes:
        type: whose.
        value: its timeout, or for how long its jobs are kept.
        until: when it was answered well, on the loop's clock, seconds; endless as long as it may still take effect.
    """

    type: JobType
    value: float | tuple[float | None, float | None]
    until: float = float("inf")


@dataclass(frozen=True)
class Together:
    """How a handler ends that ends when others do.

    Attributes:
        at: when, on the loop's clock, seconds.
        size: of its result, in bytes.
    """

    at: float
    size: int


class RunnerState:
    """What is known so far of handlers and their jobs.

    Args:
        run: that they are part of.
        random: from which the handlers' options are drawn.

    Attributes:
        max_jobs: how many jobs a process runs at most; None for as many as there are slots.
        options: of the handlers.
        active: calls of handlers that go on.
        held, accepted: calls of handlers, and jobs as they were given to processes, by lock.
        locks: those of jobs that are somebody's.
        ended: when a run was over in the store, on the loop's clock, seconds.
        alive: when it was seen alive last.
        unwritten: calls that are over, and whose end is not in the store yet.
        moved: when a process has accepted or ended a job last, or was given more slots.
        together: how the handlers of jobs end that end when others do, by id.
        when_over: what is done as the handler of a job ends, by id.
        begun: events of the ids for whose handlers somebody waits.
        asked: the calls by which somebody has changed settings of types.
        timeouts_changed: when the timeout of a type has changed.
        slots, slots_changed: what they were changed to while handlers run; when there were fewer of them.
        turns: when somebody was asked to give up a slot.
        retentions: how long jobs of a type may be kept.
        gone: locks of jobs that were lost, or removed by force: they are nobody's, or another's.
        taken: when jobs were canceled or taken away, by lock.
        resumed_at: when a type was resumed, infinity while one of them is paused.
        turns_resumed_at: when the type of continuous jobs was resumed, infinity while it is paused.
    """

    def __init__(self, run: Run, random: Random) -> None:
        self.run = run
        choose = random.choice
        about = run.focus.of_handlers
        crashes = about and LANE_CRASHES in run.world.choices.rates
        places = [None, None, None, None, 1, 2, 3] if not crashes else [1, 1, 2]
        self.max_jobs = choose(places if about else [None, None, 2])
        common = {
            "timeout": choose([3.0, 6.0, 15.0] if not about else [2.0, 3.0, 6.0, 15.0]) * (RARELY if run.long else 1),
            "grace": choose([0.5, 2.0, 8.0]),
            "max_history": choose([2, 20]),
            "health_threshold": choose([1.0, 120.0]),
            "backoff": choose([0.5, 2.0]),
            "jitter": choose([0.0, 0.0, 0.5]),
        }
        slots = [1, 2, 3] if not run.sizes.large else [3, 12]
        self.options: dict[JobType, dict[str, Any]] = {
            ONE_SHOT: {
                **common,
                "slots": choose(slots),
                "max_attempts": choose([1, 2, 3, None]),
                "time_limit": choose([None, None, 4.0]),
                "continuous": choose([False, is_third]),
                "fifo": choose([False, True]),
                "keep": choose([None, 0.0, 3.0]),
                "keep_failed": choose([None, None, 3.0]),
            },
            CONTINUOUS: {
                **common,
                "slots": choose([1, 2] if not run.sizes.large else [2, 16]),
                "max_attempts": None,
                "interval": choose([1.0, 3.0]) * (RARELY if run.long else 1),
                "max_churn": choose([1, 20]),
                "continuous": choose([True, lambda job: True]),
            },
        }
        if run.focus.slots is not None:
            for options in self.options.values():
                options["slots"] = run.focus.slots
        self.active: dict[Process, list[Held]] = {}
        self.held: dict[bytes, Held] = {}
        self.accepted: dict[bytes, Accepted] = {}
        self.locks: dict[tuple[JobType, Any], bytes] = {}
        self.ended: dict[bytes, float] = {}
        self.alive: dict[bytes, float] = {}
        self.unwritten: dict[bytes, Held] = {}
        self.moved: dict[Process, float] = {}
        self.begun: dict[Any, asyncio.Event] = {}
        self.asked: list[Asked] = []
        self.together: dict[Any, Together] = {}
        self.when_over: dict[Any, Callable[[], object]] = {}
        self.timeouts_changed: dict[JobType, float] = {}
        self.slots: dict[tuple[Process, JobType], int] = {}
        self.slots_changed: dict[tuple[Process, JobType], float] = {}
        self.turns: dict[tuple[Process, JobType], list[float]] = {}
        self.retentions = {
            type: {(options.get("keep", _KEPT), options.get("keep_failed"))} for type, options in self.options.items()
        }
        self.gone: set[bytes] = set()
        self.taken: dict[bytes, float] = {}
        self.resumed_at = 0.0
        self.turns_resumed_at = 0.0

    def slots_of(self, process: Process, type: JobType) -> int:
        """Return how many slots a handler has in a process."""
        slots: int = self.slots.get((process, type), self.options[type]["slots"])
        return slots

    def wrong(self, accepted: Accepted, what: str) -> None:
        """Complain about something that names a job."""
        self.run.complain(what.format(f"{accepted.type!r}/{accepted.id!r} of {accepted.process}"))


def is_third(job: RunningJob) -> bool:
    """Whether a job may be asked to give up its slot, where only some may."""
    return bool(job.data.get("call", 1) % 3 == 0)
