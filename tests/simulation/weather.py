"""How the weather of a run is drawn, and the faults that hit processes: the cluster draws its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from jobs_service import JobsService
from jobs_service.supervision import Actor
from jobs_service.supervision.supervisor import Supervising
from jobs_service.testing import FAULTS, Process

if TYPE_CHECKING:
    from tests.simulation.run import Run

PROCESS_FAULTS: Final = {
    "kill": "a process ends at its next await, as by SIGKILL",
    "stop": "a process is asked to stop, as by SIGTERM",
    "pause": "a process stands still for up to 20 s",
    "clock": "a process's wall clock jumps by up to 30 s, ahead or back",
    "away": "the cluster answers nobody for up to 15 s",
    "crash": "an actor, or a task linked to one, dies",
    "cancel": "a call is canceled by its caller",
}
"""The kinds of fault that are drawn about every second, and what each does."""

MACHINE_FAULTS: Final = {
    "thread": "a thread of an embedded store stands still between two steps, for up to 0.05 s",
    "slow thread": "the same, at a point where threads often stand in this run",
    "look": "a look at what is watched takes up to 0.05 s, so that the next ones are put off",
    "batch": "what several requests write is too much for one commit, though not for one each",
    "slow lock": "a process that starts locks its file seconds after it was made",
    "heir leaves": "a process that has found another one dead is asked to stop before it has done much",
    "heir": "a process that has found another one dead dies itself, before it has done much",
}
"""The kinds of fault of an embedded store's machine, and what each does."""

HARMLESS: Final = frozenset(
    {
        "conflict",
        "commit_lost",
        "commit_unknown",
        "suspend",
        "watch_spurious",
        "watch_lost",
        "cancel",
        "clone",
        "options",
        "sweep",
        "thread",
        "slow thread",
        "look",
        "batch",
        "slow lock",
        "heir leaves",
    }
)
"""The faults that take no time to speak of."""

RETRIED: Final = frozenset({"conflict", "commit_lost", "commit_unknown"})
"""The faults after which a transaction runs again: several in a row outlast a call that has half a second."""

LASTS: Final = {
    "request_lost": 10.0,
    "commit_timed_out": 10.0,
    "watch_late": 5.0,
    "kill": 3.0,
    "heir": 3.0,
    "stop": 8.0,
    "quiet": 8.0,
    "pause": 20.0,
    "away": 15.0,
    "crash": 8.0,
}
"""For how many seconds, at most, a fault of a kind holds others up; those that are missing are over at once."""

CATCHES_UP: Final = 6.0
"""Seconds after which those whom a fault has held up have caught up: they look at their clocks every five."""

UNNOTICED: Final = HARMLESS | {"stop", "kill", "clock", "request_lost"}
"""The faults that hold up no process that goes on."""

SURELY_LASTS: Final = {"commit_timed_out": 10.0, "watch_late": 5.0, "crash": 8.0}
"""For how many seconds others hold up those whom they hit, where they do not say so themselves when they hit."""

CATCHES_UP_SOON: Final = 3.0
"""Seconds after which those whom a fault has held up have tried again: the longest pause before that, and a second."""

PROFILES: Final = ("calm", "gusty", "breezy", "stormy")
"""Of the weather: without faults, with many that are harmless, with some, with many."""

_MOST = {"calm": 0.0, "gusty": 0.1, "breezy": 0.03, "stormy": 0.15}
_OFTEN = {
    "suspend": 4.0,
    "request_lost": 5.0,
    "kill": 2.0,
    "crash": 3.0,
    "cancel": 4.0,
    "clock": 4.0,
    "clone": 6.0,
    "options": 6.0,
    "sweep": 5.0,
    "commit_timed_out": 2.0,
}
_LATER = ("commit_timed_out", "clone", "options", "sweep")
"""Kinds of fault that are drawn apart, so that a seed has of the others what it had before there were these."""
_LONGEST_PAUSE = 20.0
_UNSURE: Final = 0.1
_MOSTLY: Final = 0.8
_OF_UNSURE: Final = {
    "commit_lost": 0.3,
    "commit_unknown": 0.3,
    "commit_timed_out": 0.2,
    "slow_answer": 0.4,
    "sweep": 0.8,
    "clone": 0.8,
    "options": 0.8,
}
RARELY: Final = 60
"""How much rarer faults that hit processes, ticks and turns are in a long run."""
_LONGEST_AWAY = 15.0
_LARGEST_JUMP = 30.0


@dataclass(frozen=True)
class Weather:
    """What a run is like.

    Attributes:
        profile: one of PROFILES.
        rates: of every kind of fault.
        disorder: of the schedule.
        latency: of the cluster, seconds.
    """

    profile: str
    rates: dict[str, float]
    disorder: float
    latency: float


def draw_weather(random: Random, later: Random, profile: str | None) -> Weather:
    """Draw the weather of a run: each kind of fault on its own, so that some runs have only one or two."""
    drawn = random.choice(PROFILES)
    profile = profile or drawn
    rates = {}
    kinds = [*FAULTS, *PROCESS_FAULTS]
    for source, some in ((random, [kind for kind in kinds if kind not in _LATER]), (later, _LATER)):
        for kind in some:
            present, rate = source.random() < 0.5, source.random() * _MOST[profile] * _OFTEN.get(kind, 1.0)
            if present and rate and (profile != "gusty" or kind in HARMLESS):
                rates[kind] = rate
    disorder, latency = random.choice([0.0, 0.2, 1.0]), random.choice([0.0, 0.002, 0.05])
    return Weather(profile, rates, disorder, latency)


def unsure(random: Random, weather: Weather) -> Weather:
    """Return, in some runs, a weather in which it is often not known what has happened, and nothing else goes wrong."""
    if random.random() >= _UNSURE:
        return weather
    rates = {kind: rate * random.uniform(0.3, 1.0) for kind, rate in _OF_UNSURE.items() if random.random() < _MOSTLY}
    return Weather("unsure", rates, weather.disorder, weather.latency)


async def nemesis(run: Run) -> None:
    """Have faults hit processes, until canceled; at once where there are none."""
    world = run.world
    random = world.choices.stream("nemesis")
    while any(world.choices.rates.get(kind) for kind in PROCESS_FAULTS):
        await asyncio.sleep(random.uniform(0.1, 1.0) * (RARELY if run.long else 1))
        for kind in PROCESS_FAULTS:
            victim = random.random()
            hard = world.choices.fault(kind)
            if hard is not None:
                _hit(run, kind, victim, hard)


def _hit(run: Run, kind: str, drawn: float, hard: float) -> None:
    world = run.world
    if kind == "away":
        world.note(f"the cluster is away for {_LONGEST_AWAY * hard:.1f} s")
        world.cluster.go_away(_LONGEST_AWAY * hard)
        run.quiet.hold_up(_LONGEST_AWAY * hard)
        return
    living = [process for process in run.processes if process.alive]
    if not living:
        return
    process = living[int(drawn * len(living))]
    if kind == "kill":
        process.kill()
    elif kind == "stop":
        world.note("asked to stop", process)
        process.request_stop()
    elif kind == "pause":
        process.pause()
        run.quiet.hold_up(_LONGEST_PAUSE * hard)
        world.loop.call_later(_LONGEST_PAUSE * hard, process.go_on)
    elif kind == "clock":
        run.move_clock(process, (2 * hard - 1) * (run.length.clocks_off if run.long else _LARGEST_JUMP))
        world.note(f"the clock is {process.clock.ahead:.1f} s ahead", process)
    elif kind == "crash":
        crash(run, process, hard)
    else:
        _cancel(run, process, hard)


def crash(run: Run, process: Process, hard: float, *, of_runner: bool = False, named: str = "") -> None:
    """Have a task of the supervisor trees die: an actor of a bug or by a stranger's hand, or one linked to it.

    Args:
        run: that the process is part of.
        process: whose trees they are.
        hard: which of them, a number from 0 up to 1.
        of_runner: whether it is one of those that run handlers.
        named: the name of the task; empty for any.
    """
    jobs = run.services.get(process)
    if jobs is None:
        return
    tasks = [each for each in tree_tasks(jobs, of_runner) if named in ("", each[1].get_name())]
    if tasks:
        actor, task = tasks[int(hard * len(tasks))]
        run.world.note(f"crash of {task.get_name()}", process)
        run.crashes.crashed(process)
        if actor is not None and hard * 1000 % 1 < 0.5:
            process.context.run(actor.cast, "a message that nobody knows")
        else:
            run.world.loop.call_soon(task.cancel, context=process.context)


def tree_tasks(jobs: JobsService, of_runner: bool = False) -> Iterator[tuple[Actor | None, asyncio.Task[object]]]:
    """Yield the tasks of a service's trees, but for their roots: (the actor, its task) and (None, a linked task)."""
    roots = [
        None if of_runner else jobs._tree.root,
        None if jobs._registry.runner is None else jobs._registry.runner.tree,
    ]
    waiting = [child for root in roots if root is not None for child in root.children]
    while waiting:
        process = waiting.pop(0)
        if process._task is not None and not process.has_ended:
            yield (process if isinstance(process, Actor) else None), process._task
        if isinstance(process, Supervising):
            waiting += process.children
        if isinstance(process, Actor):
            for task in process._linked:
                yield None, task


def _cancel(run: Run, process: Process, hard: float) -> None:
    lanes = [lane for lane in run.lanes if lane.process is process and lane.step is not None]
    if lanes:
        lane = lanes[int(hard * len(lanes))]
        run.world.note("a caller goes away", process)
        assert lane.step is not None
        run.world.loop.call_soon(lane.step.cancel, context=process.context)
