"""What is told of a type as a whole, each field of it, compared with what its jobs are and what was counted of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

import fdb.tuple

from jobs_service import Job, JobId, JobType, TypeCounts
from jobs_service.model.counts import Histogram, Interval, Totals
from jobs_service.model.type_state import QueueState
from tests import reader
from tests.reader import Counts, Record
from tests.simulation.model_job import READY, SCHEDULED, ModelJob
from tests.simulation.tallies import Tallies

_STATES: Final = ("ready", "scheduled", "running", "succeeded", "failed", "canceled")
_SECONDS: Final = {"minute": 60, "hour": 3600}
_KEPT: Final = {"minute": 25 * 60, "hour": 35 * 24}
_AHEAD: Final = 3600.0
_ROUNDED: Final = 0.002
_NOTHING: Final = (Totals(), Histogram(), Histogram())
_FEW: Final = 32
"""Jobs of one state that `stats` looks at, all of them; of more these many."""


def wrong_counts(told: TypeCounts, counted: Counts | None) -> Iterator[str]:
    """Yield what of a type's counts is not as it was counted."""
    states = {} if counted is None else counted.states
    wanted: dict[str, Any] = {state: states.get(state, 0) for state in _STATES}
    wanted["retrying"] = sum(states.get(f"{state} after a crash", 0) for state in ("ready", "scheduled"))
    found = {name: getattr(told, name) for name in wanted}
    if found != wanted:
        yield f"counts: {found}, not {wanted}"
    yield from _wrong_events(told, counted, "counts")


def wrong_intervals(
    told: Sequence[Interval], tallies: Tallies, type: JobType, resolution: str, since: float, until: float, now: float
) -> Iterator[str]:
    """Yield what is wrong with what somebody was told of the minutes or the hours of a type.

    Args:
        told: the answer.
        tallies: what was counted.
        type, resolution, since, until: that were asked for.
        now: by the clock of who has asked, seconds since the epoch.
    """
    seconds = _SECONDS[resolution]
    first = max(int(max(since, 0.0) // seconds), int(now // seconds) - _KEPT[resolution])
    last = int(min(until, now + _AHEAD) // seconds)
    numbers = [each.begin / seconds for each in told]
    if numbers != [*range(first, last + 1)] or any(each.seconds != seconds for each in told):
        yield f"throughput: of {since} to {until} by the {resolution} it was told of {numbers[:1]} to {numbers[-1:]}"
        return
    for number, each in enumerate(told, first):
        counted = tallies.of_interval(resolution, type, number)
        # Most of many have nothing, which takes no long look.
        if counted is not None or (each.totals, each.waited, each.ran) != _NOTHING:
            yield from _wrong_events(each, counted, f"{resolution} {number}")


def _wrong_events(told: TypeCounts | Interval, counted: Counts | None, where: str) -> Iterator[str]:
    wanted = {} if counted is None else counted.totals
    totals = asdict(told.totals)
    if any(number != wanted.get(name, 0) for name, number in totals.items()):
        yield f"{where}: the totals are {totals}, not {wanted}"
    for name, place in (("waited", 0), ("ran", 1)):
        times = (told.waited, told.ran)[place]
        lanes = (0,) * len(times.counts) if counted is None else (counted.waited, counted.ran)[place]
        milliseconds = 0 if counted is None else counted.sums[place]
        yield from (f"{where}: {name}: {each}" for each in _wrong_times(times, lanes, milliseconds))


def _wrong_times(told: Histogram, lanes: tuple[int, ...], milliseconds: int) -> Iterator[str]:
    number, seconds = sum(lanes), milliseconds / 1000
    if told.counts != lanes or abs(told.sum - seconds) > 1e-6 or told.count != number:
        yield f"{told}, not {lanes} and {seconds} s"
    elif told.mean != (seconds / number if number else None):
        yield f"on average {told.mean} s, not {seconds} / {number}"
    for p in (0, 50, 99):
        most = max(1, -(-number * p // 100))
        bucket = next((k for k in range(len(lanes)) if sum(lanes[: k + 1]) >= most), None)
        if told.percentile(p) != (None if bucket is None else 2.0 ** min(bucket - 9, 21)):
            yield f"the percentile {p} of {lanes} is {told.percentile(p)}"


def wrong_queue(told: QueueState, jobs: Mapping[JobId, ModelJob], *, paused: bool) -> Iterator[str]:
    """Yield what is wrong with what somebody was told of a queue in which nothing changes."""
    due = min((job.run_at for job in jobs.values() if job.state == SCHEDULED and job.run_at is not None), default=None)
    if told.next_scheduled != due:
        yield f"queue: the next job is due at {told.next_scheduled}, not {due}"
    if told.paused is not paused:
        yield f"queue: it is {'' if told.paused else 'not '}paused"
    oldest = oldest_ready(jobs)
    if (told.id is None) == any(job.state == READY for job in jobs.values()) or (
        oldest is not None and (told.id not in oldest[1] or told.ready_since != oldest[0])
    ):
        yield f"queue: {told.id!r} is the oldest one, ready since {told.ready_since}, and must be {oldest}"


def oldest_ready(jobs: Mapping[JobId, ModelJob]) -> tuple[float, Collection[JobId]] | None:
    """Return since when the job is ready that has been so for longest, of those that come first in their priorities;
    and which may be that one. None where no record tells the time."""
    first: dict[bytes, tuple[int, float, JobId]] = {}
    for id, job in jobs.items():
        if job.state == READY:
            times = [event[1] for event in job.notes.history[:1]] + ([] if job.run_at is None else [job.run_at])
            if times and (job.priority not in first or job.place < first[job.priority][0]):
                first[job.priority] = job.place, max(times), id
    since = min((at for _, at, _ in first.values()), default=None)
    return None if since is None else (since, [id for _, at, id in first.values() if at == since])


def wrong_gauges(
    told: Mapping[str, Any], jobs: Mapping[JobId, ModelJob], earliest: float, latest: float, *, all_read: bool
) -> Iterator[str]:
    """Yield what is wrong with the numbers of a type in which nothing changes.

    Args:
        told: by `stats`, without summaries.
        jobs: of the type.
        earliest, latest: between which it was told, by the clock of who has asked, seconds since the epoch.
        all_read: whether all jobs of a page are read together.
    """
    of_state: dict[str, list[ModelJob]] = {"pending": [], "scheduled": [], "running": [], "crashed": [], "finished": []}
    for job in jobs.values():
        of_state[_gauge(job)].append(job)
    found = {state: told[state] for state in of_state}
    wanted = {state: len(some) for state, some in of_state.items()}
    if found != wanted:
        yield f"stats: {found}, not {wanted}"
    # Averages go by when a job is due on the clock of who asks; others may have moved it, by theirs.
    is_moved = any(_is_due(job, earliest, latest) is not (job.state == READY) for job in jobs.values() if job.pending)
    if not all_read or is_moved or len(jobs) > _FEW:
        return
    for state, some in of_state.items():
        since = [job.notes.history[0][1] for job in some if job.notes.history]
        if state == "finished":
            continue
        least, most = (sum(max(now - at, 0.0) for at in since) / max(len(since), 1) for now in (earliest, latest))
        average = told[f"average_{state}_seconds"]
        if not least - _ROUNDED <= average <= most + _ROUNDED:
            yield f"stats: jobs are {state} for {average} s, not for {least} to {most}"


def _is_due(job: ModelJob, earliest: float, latest: float) -> bool | None:
    """Whether a pending job is due at both times; None if it comes due between them."""
    is_due = job.run_at is None or job.run_at <= earliest
    return is_due if is_due is (job.run_at is None or job.run_at <= latest) else None


def _gauge(job: ModelJob) -> str:
    if job.pending:
        return "crashed" if job.retrying else "scheduled" if job.state == SCHEDULED else "pending"
    return job.state


def in_order(jobs: Mapping[JobId, ModelJob], state: str) -> list[JobId] | None:
    """Return the jobs in a state, in the order in which pages have them; None for one of which that is not told here.

    Args:
        jobs: of a type.
        state: "ready", "scheduled", "retrying", "running" or "failed".
    """
    orders: dict[str, Any] = {
        "ready": lambda job: (job.priority, job.place),
        "scheduled": lambda job: job.run_at,
        "retrying": None,
        "running": lambda job: job.place,
        "failed": lambda job: job.place,
    }
    if state not in orders:
        return None
    some = {
        id: job for id, job in jobs.items() if state in (("retrying",) if job.retrying else (job.state, job.outcome))
    }
    if state == "retrying":
        return sorted(some, key=str)
    keys = [orders[state](job) for job in some.values()]
    return None if len({*keys}) < len(keys) else sorted(some, key=lambda id: orders[state](some[id]))


def wrong_job(job: Job, type: JobType, id: JobId, record: Record | None) -> Iterator[str]:
    """Yield what is wrong with what somebody was told of a job that has not changed meanwhile.

    Args:
        job: the answer.
        type, id: that were asked for.
        record: that is stored.
    """
    if record is None or (job.type, job.id) != (type, id):
        yield f"job: {job.type!r}/{job.id!r}: {job} is told, and {type!r}/{id!r} is {record}"
        return
    notes, error, progress = record.notes, job.error, job.progress
    state = "pending" if record.state in (READY, SCHEDULED) else record.state
    limits = reader.value_of(notes.limits or b"[null,null]")
    pairs = {
        "state": (job.state.value, state),
        "data": (job.data, reader.value_of(record.data)),
        "outcome": (job.outcome, record.outcome),
        "resubmit": (bool(job.resubmit), record.next is not None),
        "cancel": (job.cancel, record.cancel),
        "priority": (fdb.tuple.pack((job.priority,)), record.priority),
        "run_at": (
            job.run_at,
            None if record.run_at is None else datetime.fromtimestamp(record.run_at, UTC),
        ),
        "attempts": (job.attempts, notes.attempts),
        "history": (
            [(event.kind.value, event.at, event.detail) for event in job.history],
            [(event.kind, event.at, event.detail) for event in notes.history],
        ),
        "result": (job.result, reader.value_of(notes.result or b"")),
        "error": (
            None if error is None else [error.type, error.message, error.traceback],
            reader.value_of(notes.error or b""),
        ),
        "progress": (
            None if not progress else [progress.done, progress.total, progress.message],
            None if not notes.progress else reader.value_of(notes.progress)[:3],
        ),
        "limits": ([job.max_attempts, job.time_limit], limits[:2]),
        "seq": (job.seq, record.seq),
    }
    for what, (told, wanted) in pairs.items():
        if told != wanted:
            yield f"job: {what} of {type!r}/{id!r} is {told!r}, and is {wanted!r} in the store"
