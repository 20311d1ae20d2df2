"""What a history allows: clocks that were ahead, reads as old as their version, checks of the whole run."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fdb.tuple
import pytest

from jobs_service import JobsError, JobsService, JobState, NewJob, Outcome, Removal
from jobs_service.errors import JobExists, NoTypeTimeout, WorkerConflict
from jobs_service.layer import activity, creation, queue, running_jobs
from jobs_service.layer.key_parts import pack_id
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.testing import Process, World
from tests.simulation.entry import Entry
from tests.simulation.histories import Recorded, Recorder, accepted, gives, recorded, replayed, run, stored_in
from tests.simulation.job_states import State
from tests.simulation.journal import recording
from tests.simulation.model_job import Change

# Not all that was found fitted


@pytest.mark.parametrize("cut", [False, True])
def test_an_accept_may_take_fewer_only_when_not_all_fit(cut: bool) -> None:
    run = recorded().copy()
    ending, entry = run.first("accept", lambda _, entry: len(entry.result) == 2)
    entry.result = entry.result[:1]
    if cut:
        sizes = replace(entry, name="cut", arguments=(2, 1), result=None)
        ending.journal.insert(ending.journal.index(entry), sizes)
    assert any("took ['early'], expected" in complaint for complaint in replayed(run).complaints) is not cut


@functools.cache
def recorded_with_a_clock_that_was_ahead() -> Recorded:
    """Return a run in which a process makes many jobs ready, and is then told that their time is still to come."""
    world = World(0, disorder=0.0)
    recorder = Recorder(world)
    world.cluster.observers.append(recorder)

    async def program(process: Process) -> None:
        async with process.service(supervise=False) as jobs:
            await jobs.set_type_timeout("t", 10)
            run_at = process.clock.wall_time() + 3600
            await jobs.add_many("t", [NewJob(f"j{number:02}", run_at=run_at) for number in range(70)])
            process.clock.ahead = 4000.0
            assert await jobs.accept("t", timeout=0)
            process.clock.ahead = 0.0
            assert await jobs.accept("t", timeout=0) is None

    stored = run(world, program)
    return Recorded(recorder.endings, stored)


# A clock that was ahead


def test_an_accept_may_put_jobs_back_that_a_clock_ahead_has_made_ready() -> None:
    history = replayed(recorded_with_a_clock_that_was_ahead())
    assert history.complaints == []
    assert history.cells["put back", "pending"] > 60


@pytest.mark.parametrize(
    ("name", "wrong", "pattern"),
    [
        ("now", lambda entry: entry.now + 4000, "accept put 't'/'j01' back, which is ready"),
        ("arguments", lambda entry: (entry.arguments[0]._replace(make_ready=3),), "put .. jobs back, 3 at most"),
        ("result", lambda entry: entry.result[1:], "'t'/'j01' was written as scheduled"),
    ],
    ids=["due", "too many", "not said"],
)
def test_an_accept_may_put_back_no_job_that_is_due_and_no_more_than_it_may_move(
    name: str, wrong: Callable[[Entry], Any], pattern: str
) -> None:
    run = recorded_with_a_clock_that_was_ahead().copy()
    _, entry = run.first("put back")
    setattr(entry, name, wrong(entry))
    complaints = replayed(run).complaints
    assert any(re.search(pattern, complaint) for complaint in complaints), complaints


# What may be as old as the read version


def test_a_transaction_that_only_reads_is_compared_with_the_state_that_it_has_seen() -> None:
    run = recorded().copy()
    ending, gone = run.first("remove", gives(Removal.REMOVED))
    assert ending.commit_version is not None
    refused = replace(gone, name="add", arguments=(Change(b"", b"\x14", None), "error"), result=JobExists)
    late = replace(run.endings[-1], journal=[refused], commit_version=None, written={})
    before = replace(late, version=ending.commit_version - 1)
    after = replace(late, version=ending.commit_version)
    assert replayed(Recorded([*run.endings, before], run.stored)).complaints == []
    complaints = replayed(Recorded([*run.endings, after], run.stored)).complaints
    assert re.search("read version.*add.*'t'/'b': expected ready.*got JobExists", complaints[0])


@pytest.mark.parametrize(
    ("version", "result", "well"),
    [
        ("before", WorkerConflict, False),
        ("before", NoTypeTimeout, True),
        ("after", NoTypeTimeout, True),
        ("last", NoTypeTimeout, False),
    ],
)
def test_an_add_may_see_any_state_that_its_type_had_since_the_read_version(
    version: str, result: type[JobsError], well: bool
) -> None:
    run = recorded().copy()
    cleared, entry = run.first("clear timeout")
    assert cleared.commit_version is not None
    place = run.endings.index(cleared)
    again = replace(cleared.copy(), commit_version=cleared.commit_version + 1)
    again.journal = [replace(entry, name="set timeout", arguments=(5.0,))]
    again.written = {entry.keys.timeout: fdb.tuple.pack((5.0,))}
    versions = {"before": -1, "after": 0, "last": 1}
    added = replace(again.copy(), version=cleared.commit_version + versions[version], written={})
    added.commit_version = cleared.commit_version + 2
    change = Change(b"", b"\x14", None)
    added.journal = [replace(entry, name="add", id="x", arguments=(change, "error"), result=result)]
    complaints = replayed(Recorded([*run.endings[: place + 1], again, added], {})).complaints
    assert (not any("'brief'/'x'" in complaint for complaint in complaints)) is well


@pytest.mark.parametrize("seen", [False, True])
def test_an_accept_with_spread_need_not_know_of_a_job_that_came_after_its_read_version(seen: bool) -> None:
    run = recorded().copy()
    added, _ = run.first("add", lambda _, entry: entry.type == "spread")
    ending, entry = run.first("accept", lambda _, entry: entry.type == "spread")
    assert ending.commit_version is not None
    entry.result = [("q", entry.result[0][1])]
    ahead = added.copy()
    ahead.commit_version = ending.commit_version
    _, record = stored_in(added, added.journal[0])
    record.priority = b"\x13\xfe"
    ahead.written = {entry.keys.data + pack_id("o"): record.encode()}
    ahead.journal = [
        replace(added.journal[0], id="o", arguments=(Change(b"", record.priority, None), "error"), result=record)
    ]
    ending.version = ending.commit_version - (0 if seen else 1)
    ending.commit_version += 1
    place = run.endings.index(ending)
    before = [each for each in run.endings[:place] if each.commit_version != ahead.commit_version]
    complaints = replayed(Recorded([*before, ahead, ending], {})).complaints
    assert any("took 'q'" in complaint for complaint in complaints) is seen


# What checks of the whole run ask


def test_the_history_of_a_job_has_all_that_it_was_in_the_order_of_the_commits() -> None:
    history = replayed(recorded())
    states = history.states("t", "b")
    pending, running, finished, removed = (
        JobState.PENDING,
        JobState.RUNNING,
        JobState.FINISHED,
        JobState.REMOVED,
    )
    assert [(state.state, state.data, state.outcome) for state in states] == [
        (pending, 2, None),
        (pending, 3, None),
        (running, 3, None),
        (running, 3, None),
        (finished, {"last": "word"}, Outcome.CANCELED),
        (removed, None, None),
    ]
    assert [state.version for state in states] == sorted({state.version for state in states})
    seqs = [state.seq for state in states]
    assert seqs[0] == seqs[1]
    assert seqs[2] == seqs[3]
    assert None not in seqs[:5]
    assert isinstance(states[0], State)
    assert history.states("t", "never") == []


def test_every_silence_is_at_least_the_timeout() -> None:
    silences = replayed(recorded()).silences
    assert silences
    for silence in silences:
        assert silence.timeout is not None
        assert silence.timeout <= silence.silent < 1.5 * silence.timeout + 1


# The journal


def test_recording_puts_back_what_was_there() -> None:
    places = [(creation, "add"), (running_jobs, "finish"), (queue, "make_ready"), (activity, "re_enqueue")]
    before = [getattr(*place) for place in places] + [UnitOfWork.fitting]
    with recording():
        assert all(getattr(*place) is not original for place, original in zip(places, before, strict=False))
    assert [getattr(*place) for place in places] + [UnitOfWork.fitting] == before


async def test_a_store_without_journals_is_left_alone() -> None:
    with recording():
        async with JobsService("memory:", supervise=False) as jobs:
            await jobs.set_type_timeout("t", 10)
            await jobs.add_many("t", [NewJob("a"), NewJob("b")])
            await (await accepted(jobs)).update(1)
            await jobs.resubmit("t", "a")
            with pytest.raises(JobExists):
                await jobs.add("t", "b")
            assert await jobs.remove("t", "b") is Removal.REMOVED
            await jobs.clear_type_timeout("t")
