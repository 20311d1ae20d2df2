"""Comparison of two stores: the target must have all jobs of the source, unchanged and in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jobs_service import run_data
from jobs_service.copying.source import STAMP_LENGTH, Overview, Source, TypeSettings
from jobs_service.copying.target import Target, later
from jobs_service.errors import RecordDamaged, job_name, shown
from jobs_service.layer.keyspace import DATA, READY
from jobs_service.layer.record import Record
from jobs_service.model import JobState


class Comparison(NamedTuple):
    """The differences of two stores.

    Attributes:
        differing: number of jobs that are in one store only, or differ; 1 if the order differs.
        first: describes the first difference; empty if there is none.
        strays: entries in the source's queues without a job.
    """

    differing: int
    first: str
    strays: int = 0


async def compare(source: Source, target: Target, *, whole: bool, progress: Callable[[int], object]) -> Comparison:
    """Compare all jobs, then the order of the queues.

    Args:
        source, target: the stores; neither may be written to during the comparison.
        whole: whether the target must have no other jobs and the same order: then the comparison stops at the first
            difference. Otherwise other jobs are allowed, and all differences are counted.
        progress: called with the number of jobs compared so far.
    """
    found = await _compare_jobs(source, target, whole, progress)
    if found.differing or not whole:
        return found
    return await _compare_order(source, target)


def has_settings(target: Overview, source: Overview) -> bool:
    """Return whether the target has all type settings of the source."""
    for type, wanted in source.settings.items():
        found = target.settings.get(type, TypeSettings())
        if (found.timeout, found.retention) != (wanted.timeout, wanted.retention) or found.paused < wanted.paused:
            return False
        if wanted.redaction not in (None, found.redaction):
            return False
        if wanted.periodic is not None and (
            found.periodic is None or later(wanted.periodic, found.periodic) != found.periodic
        ):
            return False
    return True


def same(record: Record, copied: Record) -> bool:
    """Return whether the target's record is a faithful copy of the source's."""
    if record.state is JobState.RUNNING:
        # Its history got an event with the time of the copy, so it is not compared.
        return copied.json == record.json and copied.lock is None
    return (
        (copied.state, copied.place, copied.outcome) == (record.state, record.place, record.outcome)
        and (copied.priority, copied.run_at, copied.next) == (record.priority, record.run_at, record.next)
        and copied.json == record.json
        # A record too large for the target has lost part of its run data.
        and copied.run_data == run_data.fitted(record.run_data, len(copied.run_data))
    )


def _record(raw: bytes) -> Record | None:
    """Decode a record; None if it is damaged."""
    try:
        record = Record.decode(raw, True)
        run_data.check(record.run_data)
    except RecordDamaged:
        return None
    return record


def _difference(ours: bytes, theirs: bytes) -> str:
    """Describe the difference of the target's copy of a job; empty if there is none."""
    record, copied = _record(ours), _record(theirs)
    if record is None:
        return ""  # The copy left it out; the target's job was there before.
    return "" if copied is not None and same(record, copied) else "is not the same in"


def _name(target: Target, rest: bytes) -> str:
    """Return the job's name for messages, from its DATA key without the section's prefix."""
    try:
        keys, id = target.keyspace.split_data_key(target.keyspace.sections[DATA] + rest)
    except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
        return shown(rest)
    return job_name(keys.type, id)


async def _compare_jobs(source: Source, target: Target, whole: bool, progress: Callable[[int], object]) -> Comparison:
    wanted, found = source.stream(DATA), target.stream(DATA)
    starts = len(source.keyspace.sections[DATA]), len(target.keyspace.sections[DATA])
    differing = compared = 0
    first = ""
    ours, theirs = await wanted.next(), await found.next()
    while ours is not None or (theirs is not None and whole):
        name = None if ours is None else ours[0][starts[0] :]
        other = None if theirs is None else theirs[0][starts[1] :]
        if ours is not None and theirs is not None and name == other:
            problem = _difference(ours[1], theirs[1])
            ours, theirs = await wanted.next(), await found.next()
            compared += 1
            progress(compared)
        elif other is None or (name is not None and name < other):
            assert ours is not None
            # The copy left out damaged records.
            problem = "is not in" if _record(ours[1]) is not None else ""
            other = name
            ours = await wanted.next()
        else:
            problem = "is not from the source, but in" if whole else ""
            theirs = await found.next()
        if problem:
            differing += 1
            assert other is not None
            first = first or f"job {_name(target, other)} {problem} {target.name}"
            if whole:
                break
    return Comparison(differing, first)


async def _compare_order(source: Source, target: Target) -> Comparison:
    wanted, found = source.stream(READY), target.stream(READY)
    start = len(target.keyspace.sections[READY])
    strays = 0
    ours, theirs = await wanted.next(), await found.next()
    while ours is not None or theirs is not None:
        if ours is not None and theirs is not None and _is_at(source, ours[0], theirs[0][start:]):
            ours, theirs = await wanted.next(), await found.next()
        elif ours is not None and await source.is_stray(ours[0]):
            strays += 1
            ours = await wanted.next()
        else:
            return Comparison(1, f"the order of the jobs in {target.name} is not that of {source.name}")
    return Comparison(0, "", strays)


def _is_at(source: Source, key: bytes, rest: bytes) -> bool:
    """Return whether a READY key of the target equals the source's, apart from section and versionstamp."""
    try:
        before, after = source.place_in_queue(key)
    except Exception:  # fdb.tuple raises many kinds of errors for bytes that are no tuple
        return False
    return rest.startswith(before) and rest[len(before) + STAMP_LENGTH :] == after
