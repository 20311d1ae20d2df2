"""The history finds nothing wrong with what really happens, and every kind of wrong that is put into a recorded run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import fdb.tuple
import pytest

from jobs_service import JobsError, JobsService, JobState, JobTransaction, NewJob, Outcome, Removal
from jobs_service.arguments import IF_EXISTS, IfExists
from jobs_service.errors import JobExists, JobTooLarge, NoTypeTimeout, StoreError, WorkerConflict
from jobs_service.layer import activity, creation, queue, running_jobs
from jobs_service.layer.key_parts import pack_id
from jobs_service.layer.record import Record
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import UNSET
from jobs_service.store import Transaction
from jobs_service.store.base import Limits
from jobs_service.testing import FAULTS, Process, SimulatedTransaction, World
from jobs_service.testing.world import Clock
from tests.operations import CELLS
from tests.simulation.history import History, State
from tests.simulation.journal import Entry, recording
from tests.simulation.model import Change

PREFIX: bytes = fdb.tuple.pack(("jobs_service",))


@dataclass
class Ending:
    """A transaction that has ended well: what the history is given of it, and when."""

    journal: list[Entry]
    version: int
    commit_version: int | None
    written: dict[bytes, bytes | None]
    process: str
    limits: Limits
    time: float

    def copy(self) -> Ending:
        return replace(self, journal=[replace(entry) for entry in self.journal], written={**self.written})


Fits = Callable[[Ending, Entry], Any]
"""Whether an operation is the one that is looked for."""


@dataclass
class Recorded:
    """A run: its transactions in commit order, and what was stored at its end."""

    endings: list[Ending]
    stored: dict[bytes, bytes]

    def copy(self) -> Recorded:
        return Recorded([ending.copy() for ending in self.endings], {**self.stored})

    def first(self, name: str, fits: Fits = lambda ending, entry: True) -> tuple[Ending, Entry]:
        """Return the first operation of that name that fits, and its transaction."""
        return next(
            (ending, entry)
            for ending in self.endings
            for entry in ending.journal
            if entry.name == name and fits(ending, entry)
        )


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self, world: World) -> None:
        self.endings: list[Ending] = []
        self._time = world.loop.time

    def ended(self, transaction: SimulatedTransaction) -> None:
        self.endings.append(
            Ending(
                list(transaction.journal),
                transaction.version,
                transaction.commit_version,
                {**transaction.written},
                str(transaction.process),
                transaction.limits,
                self._time(),
            )
        )


async def work(process: Process) -> None:
    """Do a bit of everything, one after the other."""
    async with process.service(supervise=False) as jobs:
        await work_with_types(jobs)
        await work_with_one_job(jobs)
        await work_with_queues(jobs, process.clock.wall_time())
        async with process.service():
            await asyncio.sleep(30)


async def work_with_types(jobs: JobsService) -> None:
    for type, seconds in (("t", 10), ("spread", 10), ("lost", 4), ("brief", 5)):
        await jobs.set_type_timeout(type, seconds)
    await jobs.clear_type_timeout("brief")


async def work_with_one_job(jobs: JobsService) -> None:
    await jobs.add("t", "a", 1)
    with contextlib.suppress(JobExists):
        await jobs.add("t", "a")
    await jobs.add("t", "b", 2, priority=1)
    await jobs.resubmit("t", "b", data=3)
    one = await accepted(jobs)
    await one.update()
    await one.update(5)
    await jobs.resubmit("t", "a", priority=2)
    await one.finish()
    with contextlib.suppress(WorkerConflict):
        await one.finish()
    two = await accepted(jobs)
    await jobs.remove("t", "b")
    with contextlib.suppress(JobsError):
        await two.update()
    await two.finish({"last": "word"})
    await jobs.remove("t", "b")
    three = await accepted(jobs)
    await three.resubmit(priority=3)
    await three.release()
    await jobs.add("t", "f", priority=-1)
    await accepted(jobs)
    await jobs.remove("t", "f", force=True)


async def work_with_queues(jobs: JobsService, now: float) -> None:
    with contextlib.suppress(NoTypeTimeout):
        await jobs.add("brief", "x")
    await jobs.add_many("t", [NewJob("c"), NewJob("d")])

    async def add_what_exists(tx: JobTransaction) -> None:
        with contextlib.suppress(JobExists):
            await tx.add_many("t", [NewJob("e"), NewJob("c")])

    await jobs.transact(add_what_exists)
    assert len(await jobs.accept_many("t", 4, timeout=0)) == 3
    assert await jobs.accept_many("t", 1, timeout=0) == []
    await jobs.add_many("t", [NewJob("early", run_at=now + 1), NewJob("late", run_at=now + 2)])
    await asyncio.sleep(3)
    assert len(await jobs.accept_many("t", 2, timeout=0)) == 2
    await jobs.add_many("spread", [NewJob(id) for id in "pqrst"])
    assert await jobs.accept("spread", spread=2, timeout=0)
    await jobs.add_many("lost", [NewJob("x"), NewJob("y")])
    assert len(await jobs.accept_many("lost", 2, timeout=0)) == 2


async def accepted(jobs: JobsService) -> Any:
    job = await jobs.accept("t", timeout=0)
    assert job is not None
    return job


def run(world: World, *programs: Callable[[Process], Any]) -> dict[bytes, bytes]:
    """Run the programs to their end, one process each, and return what is stored then."""
    stored: dict[bytes, bytes] = {}

    async def read(process: Process) -> None:
        async def everything(tr: Transaction) -> list[tuple[bytes, bytes]]:
            return await tr.get_range(PREFIX, PREFIX + b"\xff")

        async with process.service(supervise=False) as jobs:
            stored.update(await jobs.store.read(everything))

    async def main(world: World) -> None:
        for process in [world.start(f"p{number}", program) for number, program in enumerate(programs)]:
            await process.ended()
            assert process.failure is None
        world.choices.calm()
        await world.start("reader", read).ended()

    with recording():
        world.run(main)
    return stored


@functools.cache
def recorded() -> Recorded:
    """Return a run in which all is well."""
    world = World(0, disorder=0.0)
    recorder = Recorder(world)
    world.cluster.observers.append(recorder)
    stored = run(world, work)
    return Recorded(recorder.endings, stored)


def replayed(run: Recorded) -> History:
    """Show a history a recorded run."""
    time = 0.0
    history = History(lambda: time)
    for ending in run.endings:
        time = ending.time
        history.ended(ending)
    history.finish(run.stored)
    return history


# All is well


def test_a_run_in_which_all_is_well_gives_no_complaint() -> None:
    history = replayed(recorded())
    assert history.complaints == []
    assert history.operations > 50
    assert {(silence.type, silence.id) for silence in history.silences} >= {("lost", "x"), ("lost", "y")}


TIGHT = Limits(key=120, value=400, transaction=2500)
"""Limits at which some jobs are too large, and not all that an accept finds fits into a transaction."""


@pytest.mark.parametrize(
    ("seed", "limits"), [*((seed, None) for seed in range(5)), *((seed, TIGHT) for seed in range(5, 8))]
)
def test_what_processes_do_in_a_storm_is_as_if_done_one_after_the_other(seed: int, limits: Limits | None) -> None:
    world = World(seed, rates=dict.fromkeys(FAULTS, 0.03), latency=0.01 * (seed % 2), limits=limits)
    history = History(world.loop.time)
    world.cluster.observers.append(history)
    history.finish(run(world, *[functools.partial(at_random, seed=f"{seed}/{number}") for number in range(3)]))
    assert history.complaints == []
    assert history.operations > 200
    assert set(history.cells) <= CELLS


async def at_random(process: Process, seed: str) -> None:
    """Do anything to few jobs of few types, several things at the same time."""
    source = random.Random(seed)

    async def act() -> None:
        held: list[Any] = []
        for _ in range(40):
            with contextlib.suppress(JobsError, TimeoutError):
                await act_at_random(jobs, source, held, process.clock.wall_time())
            await asyncio.sleep(source.uniform(0, 0.5))

    async with process.service() as jobs, asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(act())


async def act_at_random(jobs: JobsService, source: random.Random, held: list[Any], now: float) -> None:
    any_of = source.choice
    type, id = any_of("tu"), any_of("abcdef")
    run_at, priority = any_of([None, now + source.uniform(-5, 10)]), any_of([0, 0, 1])
    what = source.random()
    if what < 0.3:
        rule: IfExists = source.choice(IF_EXISTS)
        await jobs.add(type, id, any_of([1, 2, 250 * "x", 350 * "x"]), priority=priority, run_at=run_at, if_exists=rule)
    elif what < 0.35:
        await jobs.resubmit(type, id, run_at=run_at)
    elif what < 0.4:
        await jobs.remove(type, id, force=any_of([True, False]))
    elif what < 0.44:
        await (jobs.set_type_timeout(type, any_of([2, 5])) if what < 0.43 else jobs.clear_type_timeout(type))
    elif what < 0.5:
        await jobs.transact(lambda tx: several(tx, type, id, run_at, source.getrandbits(3)))
    elif what < 0.75 or not held:
        due_by, spread = any_of([None, now + 5, now - 5]), any_of([1, 1, 3])
        held += await jobs.accept_many(type, any_of([1, 2]), timeout=any_of([0, 1]), due_by=due_by, spread=spread)
    else:
        job = any_of(held)
        await any_of([job.update, job.finish, job.resubmit, job.release, lambda: job.finish(outcome=Outcome.FAILED)])()


async def several(tx: JobTransaction, type: str, id: str, run_at: float | None, choices: int) -> None:
    """Do several operations in one transaction."""
    if choices & 1:
        with contextlib.suppress(JobsError):
            await tx.add(type, id, run_at=run_at)
    job = await tx.accept(type)
    if job is not None and choices & 2:
        await tx.finish(await tx.update(job, 7))
    if choices & 4:
        with contextlib.suppress(JobsError):
            await tx.remove(type, id)


# One thing is wrong

Wrong = Callable[[Recorded], object]
WRONGS: list[Any] = []


def complains(pattern: str) -> Callable[[Wrong], Wrong]:
    """Register what makes a recorded run wrong, and the complaint that it causes."""

    def register(wrong: Wrong) -> Wrong:
        WRONGS.append(pytest.param(wrong, pattern, id=wrong.__name__))
        return wrong

    return register


def stored_in(ending: Ending, entry: Entry, id: Any = None) -> tuple[bytes, Record]:
    """Return key and record of an operation's job, as its transaction has written it."""
    data_key = entry.keys.data + pack_id(id or entry.id)
    raw = ending.written[data_key]
    assert raw is not None
    return data_key, Record.decode(raw)


def altered(record: Record, **fields: Any) -> Record:
    """Return a copy with some fields of other values."""
    changed = record.with_json(record.json)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def gives(result: Any) -> Fits:
    return lambda ending, entry: entry.result is result


@complains("add.*of 't'/'a': expected ready data=1.*got JobExists")
def an_add_that_is_refused_without_a_reason(run: Recorded) -> None:
    run.first("add")[1].result = JobExists


@complains("add.*'a': expected JobExists, got ready data=1")
def an_add_of_what_exists_that_is_not_refused(run: Recorded) -> None:
    _, made = run.first("add")
    run.first("add", gives(JobExists))[1].result = made.result


@complains("add.*'brief'/'x'.*expected NoTypeTimeout, got WorkerConflict")
def an_add_to_a_type_that_does_not_exist(run: Recorded) -> None:
    run.first("add", gives(NoTypeTimeout))[1].result = WorkerConflict


@complains("add.*'t'/'a'.*expected ready.*got NoTypeTimeout")
def an_add_that_does_not_see_its_type(run: Recorded) -> None:
    run.first("add")[1].result = NoTypeTimeout


@complains("add.*'t'/'a'.*expected ready.*got JobTooLarge")
def a_small_job_that_is_too_large(run: Recorded) -> None:
    run.first("add")[1].result = JobTooLarge


@complains("update.*'t'/'a': expected running.*data is 9, not 1")
def an_update_that_gives_other_data(run: Recorded) -> None:
    _, entry = run.first("update")
    entry.result = entry.result.with_json(b"9")


@complains("resubmit.*'t'/'b': expected ready.*priority is 5, not 1")
def a_resubmit_that_gives_another_priority(run: Recorded) -> None:
    _, entry = run.first("resubmit")
    entry.result = altered(entry.result, priority=b"\x15\x05")


@complains("remove.*'b': expected <Removal.CANCELED.*got <Removal.REMOVED")
def a_running_job_that_is_removed(run: Recorded) -> None:
    run.first("remove")[1].result = Removal.REMOVED


@complains("finish.*'a': expected WorkerConflict, got ready")
def a_second_finish_that_is_not_refused(run: Recorded) -> None:
    _, ended = run.first("finish")
    run.first("finish", gives(WorkerConflict))[1].result = ended.result


@complains("finish.* of 't'/'a' ended a lock that was ended before, by finish")
def a_lock_that_is_ended_twice(run: Recorded) -> None:
    a_second_finish_that_is_not_refused(run)


@complains("stop.*ended a lock that was never given")
def a_lock_that_was_never_given(run: Recorded) -> None:
    _, entry = run.first("stop")
    entry.arguments = (b"never given.....", None, 20, "")


@complains("finish.*'a': expected ready.*outcome is <Outcome.SUCCEEDED: 'succeeded'>, not None")
def a_finish_that_forgets_the_next_run(run: Recorded) -> None:
    _, entry = run.first("finish")
    entry.result = altered(entry.result, place=0, outcome=Outcome.SUCCEEDED)


@complains("worker resubmit.*expected running.*next=.3, None..*got WorkerConflict")
def a_worker_that_cannot_resubmit(run: Recorded) -> None:
    run.first("worker resubmit")[1].result = WorkerConflict


@complains("add many to 't' gave StoreError for no reason|add.*expected JobExists, got StoreError")
def a_store_error_that_is_a_defect(run: Recorded) -> None:
    run.first("add many")[1].result = StoreError


@complains("add many to 't' gave JobExists for no reason")
def jobs_that_are_refused_without_a_reason(run: Recorded) -> None:
    _, entry = run.first("add many")
    entry.arguments = (entry.arguments[0][:1], "error")


@complains(r"accept of 't' .*limit=1, spread=1.* took \['b'\], expected \['a'\]")
def an_accept_out_of_order(run: Recorded) -> None:
    _, entry = run.first("accept")
    entry.result = [("b", entry.result[0][1])]


@complains(r"accept of 't' .*limit=2.* took \['early'\], expected \['early', 'late'\]")
def an_accept_that_leaves_a_job(run: Recorded) -> None:
    _, entry = run.first("accept", lambda _, entry: len(entry.result) == 2)
    entry.result = entry.result[:1]


@complains(r"read version.*accept of 't'.* took \[\], expected \['a'\]")
def an_accept_that_finds_nothing_where_there_is_something(run: Recorded) -> None:
    _, full = run.first("accept")
    ending, _ = run.first("accept")
    ending.commit_version, ending.written, full.result = None, {}, []


@complains(r"accept of 'spread'.*spread=2.* took 's', which is ready.*; the first were \['p', 'q'\]")
def an_accept_from_too_far_behind(run: Recorded) -> None:
    _, entry = run.first("accept", lambda _, entry: entry.type == "spread")
    entry.result = [("s", entry.result[0][1])]


@complains("accept of 'spread'.* took 0 jobs, expected 1")
def an_accept_with_spread_that_takes_nothing(run: Recorded) -> None:
    run.first("accept", lambda _, entry: entry.type == "spread")[1].result = []


@complains("accept of 'spread'.* took 2 jobs, expected 1")
def an_accept_with_spread_that_takes_too_many(run: Recorded) -> None:
    _, entry = run.first("accept", lambda _, entry: entry.type == "spread")
    other = {"p": "q", "q": "p"}[entry.result[0][0]]
    entry.result = [*entry.result, (other, entry.result[0][1])]


@complains("accept took 't'/'early' before its time")
def an_accept_before_the_time(run: Recorded) -> None:
    _, entry = run.first("accept", lambda _, entry: len(entry.result) == 2)
    entry.now -= 10


@complains("accept gave 't'/'a' no lock, but None")
def an_accept_without_a_lock(run: Recorded) -> None:
    _, entry = run.first("accept")
    [(id, record)] = entry.result
    entry.result = [(id, altered(record, lock=None))]


@complains("accept gave 't'/'b' a lock that was given before")
def a_lock_that_is_given_twice(run: Recorded) -> None:
    _, given = run.first("accept")
    _, entry = run.first("accept", lambda _, entry: entry.result and entry.result[0][0] == "b")
    [(id, record)] = entry.result
    entry.result = [(id, altered(record, lock=given.result[0][1].lock))]


@complains("accept of 't' gave AssertionError")
def an_accept_that_breaks(run: Recorded) -> None:
    run.first("accept")[1].result = AssertionError


@complains("make ready of 't' moved 2 jobs, 1 at most")
def too_many_jobs_made_ready(run: Recorded) -> None:
    _, entry = run.first("make ready", lambda _, entry: entry.result)
    entry.arguments = (entry.arguments[0], 1)


@complains("make ready moved 't'/'late', which is ready")
def a_ready_job_made_ready(run: Recorded) -> None:
    _, entry = run.first("make ready", lambda _, entry: entry.result)
    entry.result = [entry.result[1], entry.result[1]]


@complains("make ready moved 't'/'late' 98 s before its time")
def jobs_made_ready_too_early(run: Recorded) -> None:
    _, entry = run.first("make ready", lambda _, entry: entry.result)
    entry.arguments = (entry.result[1][1].run_at - 98, 100)


@complains("make ready moved 't'/'early' after one that was due later")
def jobs_made_ready_out_of_order(run: Recorded) -> None:
    _, entry = run.first("make ready", lambda _, entry: entry.result)
    entry.result = entry.result[::-1]


@complains("make ready left 't'/'early' out, and moved jobs that are due later")
def a_job_that_is_not_made_ready(run: Recorded) -> None:
    _, entry = run.first("make ready", lambda _, entry: entry.result)
    entry.result = entry.result[1:]


def lost(run: Recorded) -> tuple[Ending, Entry]:
    return run.first("lost", lambda _, entry: entry.type == "lost" and entry.result)


@complains("2 jobs of 'lost' were taken for lost, 1 at most")
def too_many_jobs_taken_for_lost(run: Recorded) -> None:
    _, entry = lost(run)
    entry.arguments = (entry.arguments[0], 1)


@complains("'lost'/'x' was taken for lost, but is ready")
def a_ready_job_taken_for_lost(run: Recorded) -> None:
    _, entry = lost(run)
    entry.result = [*entry.result, *entry.result]


@complains("'lost'/'x' was taken for lost after .* s of silence; its type's timeout is 4")
def a_job_taken_for_lost_too_early(run: Recorded) -> None:
    ending, _ = lost(run)
    accepted_at = next(
        each.time for each in run.endings if any(e.name == "accept" and e.type == "lost" for e in each.journal)
    )
    ending.time = accepted_at + 3.999


@complains("'lost'/'x' was taken for lost, but was active after 0+$")
def a_job_taken_for_lost_that_was_active_later(run: Recorded) -> None:
    _, entry = lost(run)
    entry.arguments = (bytes(10), entry.arguments[1])


@complains("set timeout of 't' gave WorkerConflict")
def a_type_that_cannot_be_set(run: Recorded) -> None:
    run.first("set timeout")[1].result = WorkerConflict


@complains("clear timeout of 'brief' gave WorkerConflict")
def a_type_that_cannot_be_cleared(run: Recorded) -> None:
    run.first("clear timeout")[1].result = WorkerConflict


@complains("the timeout of 't' was written as 11.0, expected 10")
def another_timeout_is_written(run: Recorded) -> None:
    ending, entry = run.first("set timeout")
    ending.written[entry.keys.timeout] = fdb.tuple.pack((11.0,))


@complains("the timeout of 't' must be 10.0, but was not written")
def a_timeout_that_is_left_out(run: Recorded) -> None:
    ending, entry = run.first("set timeout")
    del ending.written[entry.keys.timeout]


@complains("it wrote nothing, but must have changed the timeout of 't'")
def a_timeout_that_is_not_written(run: Recorded) -> None:
    ending, _ = run.first("set timeout")
    ending.commit_version, ending.written = None, {}


@complains("it wrote nothing, but must have changed 't'/'a'")
def an_add_that_writes_nothing(run: Recorded) -> None:
    ending, _ = run.first("add")
    ending.commit_version, ending.written = None, {}


@complains("'t'/'a' must be ready data=1.*, but was not written")
def a_record_that_is_not_written(run: Recorded) -> None:
    ending, entry = run.first("add")
    del ending.written[entry.keys.data + pack_id("a")]


@complains("the record of 't'/'a': .*version")
def a_record_that_is_none(run: Recorded) -> None:
    ending, entry = run.first("add")
    ending.written[entry.keys.data + pack_id("a")] = b"no record"


@complains("'t'/'a' must be running data=5.*: data is 6, not 5")
def a_record_with_other_data(run: Recorded) -> None:
    ending, entry = run.first("update", lambda _, entry: entry.arguments[1] is not UNSET)
    data_key, record = stored_in(ending, entry)
    ending.written[data_key] = record.with_json(b"6").encode()


@complains("'t'/'b' must be missing, but is finished")
def a_removed_job_that_is_still_there(run: Recorded) -> None:
    ending, _ = run.first("remove", gives(Removal.REMOVED))
    finished = run.first("finish", lambda _, entry: entry.id == "b")
    data_key, record = stored_in(*finished)
    ending.written[data_key] = record.encode()


@complains("'t'/'a' must be ready.*, but is missing")
def a_job_that_is_gone(run: Recorded) -> None:
    ending, entry = run.first("add")
    ending.written[entry.keys.data + pack_id("a")] = None


@complains("'t'/'a' has moved, but its seq is 00")
def an_update_that_keeps_its_seq(run: Recorded) -> None:
    ending, entry = run.first("update")
    data_key, record = stored_in(ending, entry)
    ending.written[data_key] = altered(record, seq=bytes(12)).encode()


@complains("'t'/'b' has not moved, but its seq has become 00")
def new_data_that_move_a_pending_job(run: Recorded) -> None:
    ending, entry = run.first("resubmit")
    data_key, record = stored_in(ending, entry)
    ending.written[data_key] = altered(record, seq=bytes(12)).encode()


@complains("'t'/'c' has moved before 't'/'d', but its seq is later")
def jobs_whose_seqs_are_out_of_order(run: Recorded) -> None:
    ending, entry = run.first("add", lambda _, entry: entry.id == "c")
    first, second = stored_in(ending, entry), stored_in(ending, entry, "d")
    ending.written[first[0]] = altered(first[1], seq=second[1].seq_bytes or b"").encode()
    ending.written[second[0]] = altered(second[1], seq=first[1].seq_bytes or b"").encode()


@complains("jobs of 't' have changed, but nobody was told")
def a_change_that_nobody_is_told_of(run: Recorded) -> None:
    ending, entry = run.first("update")
    del ending.written[entry.keys.watch_activity]


@complains("jobs of 't' became pending, but nobody was told")
def a_pending_job_that_nobody_is_told_of(run: Recorded) -> None:
    ending, entry = run.first("stop")
    del ending.written[entry.keys.watch_pending]


@complains("'t'/'a' was written as ready.*, but no operation has changed it from missing")
def a_write_without_an_operation(run: Recorded) -> None:
    ending, _ = run.first("add")
    ending.journal.clear()


@complains("'t'/'b' was written as ready.*, but no operation has changed it from ready")
def an_identical_resubmit_that_writes(run: Recorded) -> None:
    ending, same = run.first("resubmit")
    added, made = run.first("add", lambda _, entry: entry.id == "b")
    same.arguments, same.result = (Change(UNSET, UNSET, UNSET),), made.result
    data_key, record = stored_in(added, made)
    ending.written[data_key] = record.encode()


@complains("at the end: 't'/'a' is .*: nothing is stored")
def a_job_that_is_not_there_at_the_end(run: Recorded) -> None:
    del run.stored[run.first("add")[1].keys.data + pack_id("a")]


@complains("at the end: 't'/'b' is stored, but must be gone")
def a_job_that_is_there_at_the_end(run: Recorded) -> None:
    _, entry = run.first("add")
    run.stored[entry.keys.data + pack_id("b")] = run.stored[entry.keys.data + pack_id("a")]


@complains("at the end: 't'/'a' is .*: data is 77, not 5")
def a_job_that_is_another_at_the_end(run: Recorded) -> None:
    data_key = run.first("add")[1].keys.data + pack_id("a")
    run.stored[data_key] = Record.decode(run.stored[data_key]).with_json(b"77").encode()


@complains("at the end: the types' timeouts are ")
def a_type_that_is_not_there_at_the_end(run: Recorded) -> None:
    del run.stored[run.first("set timeout")[1].keys.timeout]


@pytest.mark.parametrize(("wrong", "pattern"), WRONGS)
def test_the_history_complains_of(wrong: Wrong, pattern: str) -> None:
    run = recorded().copy()
    wrong(run)
    complaints = replayed(run).complaints
    assert any(re.search(pattern, complaint) for complaint in complaints), complaints


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


# A clock that was ahead


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


# Defects of the layer, put in before and after recording begins

Defect = Callable[[Any], Any]
"""Takes what is there, and returns what is there instead."""


def flag_ignored(original: Any) -> Any:
    """Finish a job that was canceled as if it were not."""

    async def finish(unit: UnitOfWork, place: Any, *arguments: Any) -> Any:
        entry = await unit.load(place)
        if entry.record is not None:
            entry.record = altered(entry.record, cancel=False)
        return await original(unit, place, *arguments)

    return finish


def never_canceled(original: Any) -> Any:
    """Refuse nothing."""
    return lambda entry, record: None


def from_behind(original: Any, *, spread: bool = False) -> Any:
    """Return the candidates in the wrong order."""

    async def candidates(unit: UnitOfWork, keys: Any, terms: queue.AcceptTerms, due_by: float, wanted: int) -> Any:
        if spread and terms.spread == 1:
            return await original(unit, keys, terms, due_by, wanted)
        found, early = await original(unit, keys, terms, due_by, wanted + 3)
        return found[::-1], early

    return candidates


FLAG = "'t'/'b'.* finished data=.*CANCELED"
REFUSED = "update.*expected JobCanceled, got running"
EXACT = r"accept of 't'.*took \['b'\], expected \['a'\]"
SPREAD = r"accept of 'spread'.*took .*the first were \['p', 'q'\]"

DEFECTS = [
    pytest.param(running_jobs, "finish", flag_ignored, FLAG, id="finish"),
    pytest.param(running_jobs, "_refuse_canceled", never_canceled, REFUSED, id="canceled"),
    pytest.param(queue, "candidates", from_behind, EXACT, id="exact order"),
    pytest.param(queue, "candidates", functools.partial(from_behind, spread=True), SPREAD, id="spread"),
]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("module", "name", "defect", "pattern"), DEFECTS)
def test_a_defect_of_the_layer_is_seen_as_what_really_happened(
    module: Any, name: str, defect: Defect, pattern: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(0, disorder=0.0)
    history = History(world.loop.time)
    world.cluster.observers.append(history)

    def put_in() -> None:
        monkeypatch.setattr(module, name, defect(getattr(module, name)))

    async def spoiled(process: Process) -> None:
        try:
            if late:
                put_in()
            with contextlib.suppress(AssertionError, JobsError):
                await work(process)
        finally:
            if late:
                monkeypatch.undo()

    if not late:
        put_in()
    run(world, spoiled)
    assert any(re.search(pattern, complaint) for complaint in history.complaints), history.complaints


# Clocks


def by_the_loop(process: Process) -> Callable[[], float]:
    return process.world.loop.time


def by_the_world(process: Process) -> Callable[[], float]:
    return Clock(process.world.loop).wall_time


def as_it_was_once(process: Process) -> Callable[[], float]:
    began = process.clock.wall_time()
    return lambda: began


@pytest.mark.parametrize("in_a_block", [False, True])
@pytest.mark.parametrize("wrong", [None, by_the_loop, by_the_world, as_it_was_once])
def test_the_time_of_an_operation_is_that_of_its_processs_clock(
    wrong: Callable[[Process], Any] | None, in_a_block: bool
) -> None:
    world = World(0, disorder=0.0)
    history = History(world.loop.time)
    world.cluster.observers.append(history)

    async def program(process: Process) -> None:
        process.clock.ahead = 7.0
        if wrong is not None:
            process.sources.wall_time = wrong(process)
        async with process.service(supervise=False) as jobs:
            await jobs.set_type_timeout("t", 10.0)
            await asyncio.sleep(5.0)
            run_at = process.clock.wall_time() - 1.0
            if not in_a_block:
                await jobs.add("t", "a", run_at=run_at)
                return

            async def add(transaction: Transaction) -> None:
                with jobs.within(transaction) as tx:
                    tx.add("t", "a", run_at=run_at)

            await jobs.store.transact(add)

    run(world, program)
    assert any("notes is" in complaint for complaint in history.complaints) is (wrong is not None)
