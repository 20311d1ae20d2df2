"""Which jobs run next, which give up their slot, and how long a crashed one waits. Floor: runner.

Pure functions, without clock and store: those of CouchDB's couch_replicator_scheduler (April 2017), made general. A
history is newest first, times are seconds since the epoch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Final

from jobs_service.model import HistoryEvent, HistoryKind, JobId

HEALTH_THRESHOLD: Final = 120.0
"""Seconds that a job runs before a crash is no longer one in a row."""

BACKOFF_INTERVAL: Final = 30.0
"""Seconds that a job waits after its first crash."""

_MAX_BACKOFF_EXPONENT: Final = 10
# The seed's job is added once and gone when it completes; ours may come back, and then begins anew.
_FRESH_STARTS: Final = frozenset({HistoryKind.ADDED, HistoryKind.FINISHED, HistoryKind.CANCELED})


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that runs or waits to run, as far as scheduling looks at it.

    Attributes:
        id: of the job.
        history: what happened to it, newest first.
        continuous: whether it never ends by itself, and so can be asked to give up its slot to others.
        running: whether it holds a slot.
        since: when it began to run, by a clock that nobody sets, seconds; 0.0 where only histories tell.
    """

    id: JobId
    history: tuple[HistoryEvent, ...]
    continuous: bool
    running: bool
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What one round of scheduling does: first stops, then starts, each in this order.

    A job that is in both runs again at once: it got the next turn as well, and now others are stopped before it.
    """

    stop: tuple[JobId, ...]
    start: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class Gauges:
    """How many jobs are in each state, and for how many seconds they have been in it on average (0.0 for none)."""

    pending: int
    running: int
    crashed: int
    average_pending: float
    average_running: float
    average_crashed: float


def consecutive_crashes(history: Sequence[HistoryEvent], health_threshold: float = HEALTH_THRESHOLD) -> int:
    """Count the crashes in a row that a job's history begins with.

    A crash counts when it came at most `health_threshold` seconds after the event before it; the row ends at one that
    came later, at a stop after a start, and where the job was added, resubmitted or finished. The oldest event of a
    history never counts: what was before it is not known.

    Args:
        history: newest first.
        health_threshold: seconds.
    """
    crashes = 0
    for event, previous in pairwise(history):
        if event.kind is HistoryKind.CRASHED:
            if event.at - previous.at > health_threshold:
                break
            crashes += 1
        elif _ends_row(event, previous):
            break
    return crashes


def crashes_in_a_row(
    history: Sequence[HistoryEvent], now: float, before: int, health_threshold: float = HEALTH_THRESHOLD
) -> int:
    """Count the crash of a run that fails now, and those in a row before it.

    One that comes after a healthy run is the first of a new row; in the seed it is none, so that a job which fails late
    is tried again at once, for ever.

    Args:
        history: newest first, as it is before this crash is written into it.
        now: when it crashed, seconds since the epoch.
        before: crashes in a row before this one, as counted beside the history, which forgets.
        health_threshold: seconds, see `consecutive_crashes`.
    """
    crashed = (HistoryEvent(HistoryKind.CRASHED, now), *history)
    known = consecutive_crashes(crashed, health_threshold)
    was_healthy = bool(history) and now - history[0].at > health_threshold
    return max(known, 1 if was_healthy else before + 1)


def latest_crash(history: Sequence[HistoryEvent]) -> float:
    """Return when the job crashed last, 0.0 for never."""
    return _latest(history, HistoryKind.CRASHED)


def last_started(history: Sequence[HistoryEvent]) -> float:
    """Return when the job was started last, 0.0 for never."""
    return _latest(history, HistoryKind.STARTED)


def backoff(crashes: int, interval: float = BACKOFF_INTERVAL) -> float:
    """Return for how many seconds a job waits after so many crashes in a row: doubled by each, at most 1024 intervals.

    Args:
        crashes: as `consecutive_crashes` counts them; 0 gives 0.0.
        interval: seconds to wait after the first.
    """
    if crashes < 1:
        return 0.0
    return float(2 ** min(crashes - 1, _MAX_BACKOFF_EXPONENT) * interval)


def not_recently_crashed(
    history: Sequence[HistoryEvent],
    now: float,
    health_threshold: float = HEALTH_THRESHOLD,
    interval: float = BACKOFF_INTERVAL,
) -> bool:
    """Tell whether a job may be started: it was stopped or just added, or has waited out its backoff.

    Args:
        history: newest first.
        now: seconds since the epoch.
        health_threshold: seconds, see `consecutive_crashes`.
        interval: seconds, see `backoff`.
    """
    if history and history[0].kind in (HistoryKind.ADDED, HistoryKind.STOPPED):
        return True
    # Added up as in retry_at: the difference of two times could be rounded to a little less than the backoff.
    return now >= latest_crash(history) + backoff(consecutive_crashes(history, health_threshold), interval)


def retry_at(
    history: Sequence[HistoryEvent],
    now: float,
    attempts: int,
    max_attempts: int | None,
    health_threshold: float = HEALTH_THRESHOLD,
    interval: float = BACKOFF_INTERVAL,
    before: int = 0,
) -> float | None:
    """Decide what becomes of a job whose run crashes now.

    Args:
        history: newest first, as it is before this crash is written into it.
        now: when it crashed, seconds since the epoch.
        attempts: runs so far, this one included.
        max_attempts: so many runs at most: 1 never tries again (the seed's transient job), None tries for ever (its
            permanent job).
        health_threshold: seconds, see `consecutive_crashes`.
        interval: seconds, see `backoff`.
        before: crashes in a row before this one, as counted beside the history.

    Returns:
        The earliest time to start it again, in seconds since the epoch; None when its attempts are used up.
    """
    if max_attempts is not None and attempts >= max_attempts:
        return None
    return now + backoff(crashes_in_a_row(history, now, before, health_threshold), interval)


def pending_jobs(
    jobs: Iterable[Candidate],
    count: int,
    now: float,
    health_threshold: float = HEALTH_THRESHOLD,
    interval: float = BACKOFF_INTERVAL,
) -> list[Candidate]:
    """Choose the jobs to start: those that were started longest ago, or never, and are not in backoff.

    Jobs that run already are passed over. In the seed they take the places of those that wait, which may then wait for
    ever; CouchDB mended that later (apache/couchdb#2935).

    Args:
        jobs: among which to choose; of those always started at the same times the first ones go first.
        count: so many at most.
        now: seconds since the epoch.
        health_threshold: seconds, see `consecutive_crashes`.
        interval: seconds, see `backoff`.
    """
    eligible = (
        job for job in jobs if not job.running and not_recently_crashed(job.history, now, health_threshold, interval)
    )
    return heapq.nsmallest(count, eligible, key=_turn)


def excess(running: Iterable[Candidate], slots: int) -> list[Candidate]:
    """Choose the jobs to stop because there are more than slots: continuous ones first, longest running first."""
    jobs = sorted(running, key=lambda job: (not job.continuous, _run(job)))
    return jobs[: max(len(jobs) - slots, 0)]


def rotation(running: Iterable[Candidate], pending: int, slots: int, max_churn: int) -> list[Candidate]:
    """Choose the continuous jobs that give up their slots to others, longest running first.

    Args:
        running: the jobs that hold slots; nobody has to give up one unless exactly all are taken.
        pending: so many jobs wait.
        slots: how many there are.
        max_churn: so many are stopped at most.
    """
    jobs = list(running)
    if len(jobs) != slots:
        return []
    return heapq.nsmallest(min(pending, max_churn), (job for job in jobs if job.continuous), key=_run)


def reschedule(
    jobs: Iterable[Candidate],
    slots: int,
    max_churn: int,
    now: float,
    health_threshold: float = HEALTH_THRESHOLD,
    interval: float = BACKOFF_INTERVAL,
) -> Plan:
    """Plan one round: stop what is too much, else start what there is room for, else let continuous jobs take turns.

    Args:
        jobs: all that run or wait.
        slots: how many may run at once.
        max_churn: how many may be made to give up their slot to others; starting into free slots is not limited.
        now: seconds since the epoch.
        health_threshold: seconds, see `consecutive_crashes`.
        interval: seconds, see `backoff`.
    """
    running: list[Candidate] = []
    waiting: list[Candidate] = []
    for job in jobs:
        (running if job.running else waiting).append(job)
    if len(running) > slots:
        return Plan(_ids(excess(running, slots)), ())
    rotated = rotation(running, len(waiting), slots, max_churn)
    free = slots - len(running) + len(rotated)
    # Who has just given up a slot competes for it as well: it may be the one that was started longest ago.
    contenders = waiting + [_stopped(job, now) for job in rotated]
    return Plan(_ids(rotated), _ids(pending_jobs(contenders, free, now, health_threshold, interval)))


def gauges(jobs: Iterable[Candidate], now: float) -> Gauges:
    """Count jobs by state, and average how long they have been in it: since the newest event of each.

    Args:
        jobs: all that run or wait; one without a history counts as if it had come into its state just now.
        now: seconds since the epoch.
    """
    pending: list[float] = []
    running: list[float] = []
    crashed: list[float] = []
    for job in jobs:
        newest = job.history[0] if job.history else HistoryEvent(HistoryKind.ADDED, now)
        if job.running:
            ages = running
        elif newest.kind is HistoryKind.CRASHED:
            ages = crashed
        else:
            ages = pending
        # The clock of the machine that wrote the event may be ahead.
        ages.append(max(now - newest.at, 0.0))
    return Gauges(len(pending), len(running), len(crashed), _average(pending), _average(running), _average(crashed))


def _average(ages: Sequence[float]) -> float:
    return fmean(ages) if ages else 0.0


def _ends_row(event: HistoryEvent, previous: HistoryEvent) -> bool:
    stopped_while_healthy = event.kind is HistoryKind.STOPPED and previous.kind is HistoryKind.STARTED
    return stopped_while_healthy or event.kind in _FRESH_STARTS


def _latest(history: Sequence[HistoryEvent], kind: HistoryKind) -> float:
    return next((event.at for event in history if event.kind is kind), 0.0)


def _turn(job: Candidate) -> tuple[float, ...]:
    # The seed's clock never starts two jobs at the same time; jobs accepted by one transaction are. The starts before
    # decide then, as they decided in which order the seed would have started those: else the same ones always win.
    return tuple(event.at for event in job.history if event.kind is HistoryKind.STARTED)


def _run(job: Candidate) -> tuple[float, ...]:
    # Clocks are set, and a history can be damaged, or cut short because the record is large.
    return (job.since, *_turn(job))


def _stopped(job: Candidate, now: float) -> Candidate:
    return replace(job, history=(HistoryEvent(HistoryKind.STOPPED, now), *job.history), running=False)


def _ids(jobs: Iterable[Candidate]) -> tuple[JobId, ...]:
    return tuple(job.id for job in jobs)
