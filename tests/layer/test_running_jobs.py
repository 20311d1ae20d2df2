"""What workers and the activity monitor leave in a job's notes, and whom they tell: operation by operation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jobs_service import Outcome, WorkerConflict, run_data
from jobs_service.layer import activity, creation, queue, running_jobs
from jobs_service.layer.candidates import AcceptTerms
from jobs_service.layer.creation import Spec
from jobs_service.layer.key_parts import pack_seconds
from jobs_service.layer.record import Record
from jobs_service.layer.retention import Retention
from jobs_service.layer.running_jobs import LockStatus, RunReport
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobError, JobState, Progress
from jobs_service.run_values import HistoryKind
from tests.layer.support import Layer, layer
from tests.virtual_time import EPOCH, in_virtual_time

A, S, X, C, L, F, K = (
    HistoryKind.ADDED,
    HistoryKind.STARTED,
    HistoryKind.STOPPED,
    HistoryKind.CRASHED,
    HistoryKind.LOST,
    HistoryKind.FINISHED,
    HistoryKind.CANCELED,
)
ERROR = JobError("E", "no")
CRASHED = RunReport(None, run_data.error_json(ERROR), "E: no")
AGAIN = Spec("new", 0, None)


async def accept(found: Layer, limit: int = 1, **terms: Any) -> bytes:
    """Accept the job at the front, and return its lock."""
    wanted = AcceptTerms(limit, None, None, 1, 100, "me", **terms)
    [entry], _ = await found.transact(lambda unit: queue.accept(unit, found.keys, wanted))
    assert entry.record is not None
    assert entry.record.lock is not None
    return entry.record.lock


async def running(found: Layer) -> bytes:
    """Add the job "a" and accept it."""
    await found.add("a")
    return await accept(found)


async def record(found: Layer) -> Record:
    """Return the record of the job "a", after a look at the whole store."""
    await found.assert_sound()
    raw = await found.store.read(lambda transaction: transaction.get(found.place("a")[0].data + found.place("a")[2]))
    assert raw is not None
    return Record.decode(raw)


def kinds(told: Record) -> list[HistoryKind]:
    """Return the kinds of a job's events, oldest first."""
    return [event.kind for event in reversed(run_data.history_of(told.run_data))]


async def counter(found: Layer) -> int:
    """Return how often it was told that a running job was taken away."""
    raw = await found.store.read(lambda transaction: transaction.get(found.keys.watch_canceled))
    return int.from_bytes(raw or b"", "little")


async def lose_all(found: Layer) -> list[Any]:
    """Take whatever runs for lost."""
    lost = await found.transact(lambda unit: activity.re_enqueue(unit, found.keys, b"\xff" * 10, 10))
    return lost.ids


# History and attempts

Move = Callable[[UnitOfWork, Any, bytes], Awaitable[Any]]
MOVES: dict[str, tuple[Move, list[HistoryKind], int]] = {
    "update": (lambda unit, place, lock: running_jobs.update(unit, place, lock, b"1"), [A, S], 1),
    "progress": (lambda unit, place, lock: running_jobs.update(unit, place, lock, None, b'[1,2,""]'), [A, S], 1),
    "beat": (lambda unit, place, lock: running_jobs.beat(unit, [(place, lock)]), [A, S], 1),
    "resubmit": (lambda unit, place, lock: running_jobs.resubmit(unit, place, lock, AGAIN), [A, S], 1),
    "release": (lambda unit, place, lock: running_jobs.release(unit, place, lock), [A, S, X], 0),
    "stop": (lambda unit, place, lock: running_jobs.stop(unit, place, lock, EPOCH + 9), [A, S, X], 0),
    "crash": (lambda unit, place, lock: running_jobs.crash(unit, place, lock, CRASHED, EPOCH + 9), [A, S, C], 1),
    "finish": (lambda unit, place, lock: running_jobs.finish(unit, place, lock, None, Outcome.SUCCEEDED), [A, S, F], 1),
    "fail": (
        lambda unit, place, lock: running_jobs.finish(unit, place, lock, None, Outcome.FAILED, CRASHED),
        [A, S, C, F],
        1,
    ),
    "cancel": (lambda unit, place, lock: running_jobs.finish(unit, place, lock, None, Outcome.CANCELED), [A, S, K], 1),
}
CANCELED_ENDS = {"release": [A, S, X, K], "stop": [A, S, X, K], "crash": [A, S, C, K], "finish": [A, S, K]}


@pytest.mark.parametrize("move", MOVES)
@in_virtual_time
async def test_a_move_of_a_running_job_leaves_its_events_and_counts_its_attempt(move: str) -> None:
    operation, events, attempts = MOVES[move]
    async with layer() as found:
        lock = await running(found)
        await found.transact(lambda unit: operation(unit, found.place("a"), lock))
        told = await record(found)
    assert kinds(told) == events
    assert run_data.attempts_of(told.run_data) == attempts
    details = {event.kind: event.detail for event in run_data.history_of(told.run_data)}
    assert (details[S], details.get(C, "E: no"), details[A]) == ("me", "E: no", "")


@pytest.mark.parametrize("move", CANCELED_ENDS)
@in_virtual_time
async def test_a_move_that_ends_a_canceled_job_says_last_that_it_was_canceled(move: str) -> None:
    operation, _, _ = MOVES[move]
    async with layer() as found:
        lock = await running(found)
        await found.transact(lambda unit: creation.remove(unit, found.place("a"), False))
        await found.transact(lambda unit: operation(unit, found.place("a"), lock))
        told = await record(found)
    assert kinds(told) == CANCELED_ENDS[move]
    assert (told.state, told.outcome) == (JobState.FINISHED, Outcome.CANCELED)


@pytest.mark.parametrize("move", MOVES)
@in_virtual_time
async def test_a_move_under_another_lock_is_a_conflict_and_leaves_nothing(move: str) -> None:
    operation, _, _ = MOVES[move]
    async with layer() as found:
        await running(found)
        before = await found.pairs()
        if move == "beat":
            taken = await found.transact(lambda unit: operation(unit, found.place("a"), b"x" * 16))
            assert taken == [LockStatus.TAKEN]
        else:
            with pytest.raises(WorkerConflict):
                await found.transact(lambda unit: operation(unit, found.place("a"), b"x" * 16))
        assert await found.pairs() == before


@in_virtual_time
async def test_a_lost_job_keeps_its_attempt_and_says_so() -> None:
    async with layer() as found:
        await running(found)
        assert await lose_all(found) == ["a"]
        told = await record(found)
        assert (kinds(told), run_data.attempts_of(told.run_data)) == ([A, S, L], 1)
        await accept(found)
        assert run_data.attempts_of((await record(found)).run_data) == 2


@in_virtual_time
async def test_a_lost_canceled_job_says_both() -> None:
    async with layer() as found:
        await running(found)
        await found.transact(lambda unit: creation.remove(unit, found.place("a"), False))
        await lose_all(found)
        told = await record(found)
    assert (kinds(told), told.outcome) == ([A, S, L, K], Outcome.CANCELED)


@in_virtual_time
async def test_attempts_are_those_that_were_not_given_back() -> None:
    async with layer() as found:
        await found.add("a")
        counted = []
        for move in ("crash now", "release", "crash now", "stop now"):
            lock = await accept(found)
            if move == "crash now":
                await found.transact(
                    lambda unit, lock=lock: running_jobs.crash(unit, found.place("a"), lock, CRASHED, EPOCH)  # type: ignore[misc]
                )
            else:
                await found.transact(lambda unit, lock=lock: running_jobs.release(unit, found.place("a"), lock))  # type: ignore[misc]
            counted.append(run_data.attempts_of((await record(found)).run_data))
    assert counted == [1, 1, 2, 2]


@in_virtual_time
async def test_a_crashed_job_waits_until_it_is_to_be_tried_again_and_keeps_its_priority() -> None:
    async with layer() as found:
        await found.add("a", priority=7)
        lock = await accept(found)
        await found.transact(lambda unit: running_jobs.crash(unit, found.place("a"), lock, CRASHED, EPOCH + 30))
        told = await record(found)
        assert (told.state, told.run_at, told.priority) == (JobState.PENDING, EPOCH + 30, b"\x15\x07")
        assert run_data.error_of(told.run_data) == ERROR
        taken, _ = await found.transact(lambda unit: queue.accept(unit, found.keys, AcceptTerms(1, None, None, 1, 100)))
        assert taken == []


@in_virtual_time
async def test_a_stopped_job_keeps_its_time_unless_another_is_given() -> None:
    async with layer() as found:
        await found.add("a", run_at=EPOCH - 5)
        lock = await accept(found)
        await found.transact(lambda unit: running_jobs.stop(unit, found.place("a"), lock, None))
        assert (await record(found)).run_at == EPOCH - 5
        lock = await accept(found)
        await found.transact(lambda unit: running_jobs.stop(unit, found.place("a"), lock, EPOCH + 60))
        assert (await record(found)).run_at == EPOCH + 60


@in_virtual_time
async def test_no_more_events_are_kept_than_the_worker_says() -> None:
    async with layer() as found:
        await found.add("a")
        for _ in range(5):
            lock = await accept(found, max_history=3)
            told = CRASHED._replace(max_history=3)
            await found.transact(
                lambda unit, lock=lock, told=told: running_jobs.crash(unit, found.place("a"), lock, told, EPOCH)  # type: ignore[misc]
            )
        assert kinds(await record(found)) == [C, S, C]


@in_virtual_time
async def test_those_who_do_not_know_how_many_events_are_kept_keep_as_many_as_there_are() -> None:
    async with layer() as found:
        await found.add("a")
        for _ in range(20):
            lock = await accept(found, max_history=40)
            told = CRASHED._replace(max_history=40)
            await found.transact(
                lambda unit, lock=lock, told=told: running_jobs.crash(unit, found.place("a"), lock, told, EPOCH)  # type: ignore[misc]
            )
        assert len(kinds(await record(found))) == 40
        lock = await accept(found, max_history=40)
        await lose_all(found)
        assert kinds(await record(found))[-2:] == [S, L]
        lock = await accept(found, max_history=40)
        await found.transact(
            lambda unit: running_jobs.finish(
                unit, found.place("a"), lock, None, Outcome.FAILED, RunReport(max_history=40)
            )
        )
        await found.transact(lambda unit: creation.resubmit(unit, found.place("a"), AGAIN))
        assert (len(kinds(await record(found))), kinds(await record(found))[-1]) == (40, A)


# Result, error and progress


@in_virtual_time
async def test_what_a_run_leaves_stays_until_the_job_is_resubmitted() -> None:
    async with layer() as found:
        lock = await running(found)
        progress = run_data.progress_json(Progress(1, 2, "half"))
        await found.transact(lambda unit: running_jobs.update(unit, found.place("a"), lock, None, progress))
        told = RunReport(b'{"w":1}', run_data.error_json(ERROR))
        await found.transact(
            lambda unit: running_jobs.finish(unit, found.place("a"), lock, None, Outcome.SUCCEEDED, told)
        )
        ended = (await record(found)).run_data
        assert (run_data.result_of(ended), run_data.error_of(ended)) == ({"w": 1}, ERROR)
        assert run_data.progress_of(ended) == Progress(1, 2, "half")
        await found.transact(lambda unit: creation.resubmit(unit, found.place("a"), AGAIN))
        again = await record(found)
    assert kinds(again) == [A, S, F, A]
    assert (run_data.attempts_of(again.run_data), run_data.parts_of(again.run_data)) == (0, b"")


@in_virtual_time
async def test_a_job_resubmitted_while_it_runs_begins_without_attempts_and_keeps_what_the_run_left() -> None:
    async with layer() as found:
        lock = await running(found)
        await found.transact(lambda unit: creation.resubmit(unit, found.place("a"), AGAIN))
        told = RunReport(b"7")
        await found.transact(
            lambda unit: running_jobs.finish(unit, found.place("a"), lock, None, Outcome.SUCCEEDED, told)
        )
        again = await record(found)
    assert (again.state, kinds(again)) == (JobState.PENDING, [A, S, F])
    assert (run_data.attempts_of(again.run_data), run_data.result_of(again.run_data)) == (0, 7)


@in_virtual_time
async def test_resubmitting_a_job_that_waits_begins_anew_only_where_it_is_moved() -> None:
    async with layer() as found:
        lock = await running(found)
        await found.transact(lambda unit: running_jobs.crash(unit, found.place("a"), lock, CRASHED, EPOCH))
        await found.transact(lambda unit: creation.resubmit(unit, found.place("a"), Spec("other", 0, EPOCH)))
        assert run_data.attempts_of((await record(found)).run_data) == 1
        await found.transact(lambda unit: creation.resubmit(unit, found.place("a"), Spec("other", 5, EPOCH)))
        told = await record(found)
    assert (kinds(told), run_data.attempts_of(told.run_data), run_data.error_of(told.run_data)) == (
        [A, S, C, A],
        0,
        None,
    )


@in_virtual_time
async def test_a_job_with_as_much_data_as_can_be_still_crashes_and_ends() -> None:
    async with layer() as found:
        full = found.store.limits.value - 200
        await found.add("a", "x" * full)
        traceback = RunReport(None, run_data.error_json(JobError("E", "no", "t" * 3000)), "E: no")
        for _ in range(2):
            lock = await accept(found)
            await found.transact(
                lambda unit, lock=lock: running_jobs.crash(unit, found.place("a"), lock, traceback, EPOCH)  # type: ignore[misc]
            )
        lock = await accept(found)
        await found.transact(
            lambda unit: running_jobs.finish(unit, found.place("a"), lock, None, Outcome.FAILED, traceback)
        )
        told = await record(found)
    assert (told.outcome, run_data.attempts_of(told.run_data)) == (Outcome.FAILED, 3)


# Heartbeats


@in_virtual_time
async def test_one_beat_renews_what_is_held_and_tells_what_is_not() -> None:
    async with layer() as found:
        for id in ("a", "b", "c"):
            await found.add(id)
        wanted = AcceptTerms(3, None, None, 1, 100)
        entries, _ = await found.transact(lambda unit: queue.accept(unit, found.keys, wanted))
        held = [(found.place(entry.id), entry.record.lock) for entry in entries if entry.record and entry.record.lock]
        await found.transact(lambda unit: creation.remove(unit, found.place("b"), False))
        await found.transact(lambda unit: creation.remove(unit, found.place("c"), True))
        [stamp] = [value for key, value in await found.pairs() if key == found.keys.watch_activity]
        told = await found.transact(lambda unit: running_jobs.beat(unit, [*held, (found.place("nobody"), b"x" * 16)]))
        assert told == [LockStatus.HELD, LockStatus.CANCELED, LockStatus.TAKEN, LockStatus.TAKEN]
        lost = await found.transact(lambda unit: activity.re_enqueue(unit, found.keys, stamp, 10))
        assert lost == ([], False)
        await found.assert_sound()


# Who is told


@in_virtual_time
async def test_those_who_run_jobs_are_told_exactly_when_one_is_taken_away() -> None:
    async with layer() as found:
        lock = await running(found)
        for move in ("update", "progress", "beat"):
            operation, _, _ = MOVES[move]
            await found.transact(lambda unit, operation=operation: operation(unit, found.place("a"), lock))  # type: ignore[misc]
        assert await counter(found) == 0
        await found.transact(lambda unit: creation.remove(unit, found.place("a"), False))
        assert await counter(found) == 1
        await found.transact(lambda unit: creation.remove(unit, found.place("a"), False))  # it is canceled already
        assert await counter(found) == 1
        await found.transact(lambda unit: creation.remove(unit, found.place("a"), True))
        assert await counter(found) == 2
        await running(found)
        await lose_all(found)
        assert await counter(found) == 3
        lock = await accept(found)
        await found.transact(lambda unit: running_jobs.finish(unit, found.place("a"), lock, None, Outcome.SUCCEEDED))
        await found.transact(lambda unit: creation.remove(unit, found.place("a"), False))
        await found.add("a")
        await found.transact(lambda unit: creation.remove(unit, found.place("a"), True))
        assert await counter(found) == 3


# Expiry


async def finish(found: Layer, id: str, outcome: Outcome = Outcome.SUCCEEDED) -> None:
    """Add a job, and have it run and end."""
    await found.add(id)
    lock = await accept(found)
    await found.transact(lambda unit: running_jobs.finish(unit, found.place(id), lock, None, outcome))


async def expire(found: Layer, until: float, limit: int = 100) -> int:
    """Remove what has expired."""
    removed = await found.transact(lambda unit: activity.remove_expired(unit, found.keys, until, limit))
    await found.assert_sound()
    return removed


async def ids(found: Layer) -> list[str]:
    """Return the ids of the jobs that are there."""
    start = len(found.keys.data)
    return [key[start + 1 : -1].decode() for key, _ in await found.pairs(found.keys.data, found.keys.data + b"\xff")]


@in_virtual_time
async def test_expired_jobs_are_removed_in_batches_the_earliest_first_and_none_too_early() -> None:
    async with layer() as found:
        for keep in (50.0, 10.0, 30.0, 20.0):
            await found.transact(
                lambda unit, keep=keep: activity.set_retention(unit, found.keys, Retention(keep, None))  # type: ignore[misc]
            )
            await finish(found, f"{keep:.0f}")
        await finish(found, "failed", Outcome.FAILED)
        assert await found.store.read(lambda tr: activity.next_expiry(tr, found.keys)) == EPOCH + 10
        assert await expire(found, EPOCH + 9.9) == 0
        assert await expire(found, EPOCH + 40, limit=2) == 2
        assert await ids(found) == ["30", "50", "failed"]
        assert await expire(found, EPOCH + 40, limit=2) == 1
        assert await expire(found, EPOCH + 1e9) == 1
        assert await ids(found) == ["failed"]
        assert await found.store.read(lambda tr: activity.next_expiry(tr, found.keys)) is None


@in_virtual_time
async def test_an_entry_that_was_left_behind_is_cleared_and_not_in_the_way() -> None:
    async with layer() as found:
        await found.transact(lambda unit: activity.set_retention(unit, found.keys, Retention(10.0, None)))
        await finish(found, "a")
        await found.add("pending")
        stray = [found.keys.expiring + pack_seconds(EPOCH) + found.place(id)[2] for id in ("gone", "pending")]

        async def damage(unit: UnitOfWork) -> None:
            for key in stray:
                unit.transaction.set(key, b"")

        await found.transact(damage)
        assert await expire(found, EPOCH + 10, limit=2) == 0
        assert await expire(found, EPOCH + 10, limit=2) == 1
        assert await ids(found) == ["pending"]
