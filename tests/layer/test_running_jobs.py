"""What workers and the activity monitor leave in a job's history, and whom they tell: operation by operation."""

from __future__ import annotations

from jobs_service import Outcome, run_data
from jobs_service.layer import creation, queue, running_jobs
from jobs_service.layer.creation import Spec
from jobs_service.layer.queue import AcceptTerms
from jobs_service.layer.record import Record
from jobs_service.layer.running_jobs import RunReport
from jobs_service.model import JobError, JobState, Progress
from jobs_service.run_data import HistoryKind
from tests.layer.moves import AGAIN, CRASHED, ERROR, A, C, F, L, S, accept, lose_all, running
from tests.layer.support import Layer, layer
from tests.virtual_time import EPOCH, in_virtual_time


async def record(found: Layer) -> Record:
    """Return the record of the job "a", after a look at the whole store."""
    await found.assert_sound()
    raw = await found.store.read(lambda transaction: transaction.get(found.place("a")[0].data + found.place("a")[2]))
    assert raw is not None
    return Record.decode(raw)


def kinds(told: Record) -> list[HistoryKind]:
    """Return the kinds of a job's events, oldest first."""
    return [event.kind for event in reversed(run_data.history_of(told.run_data))]


# History and attempts


@in_virtual_time
async def test_attempts_are_those_that_were_not_given_back_since_a_run_has_ended_itself() -> None:
    async with layer() as found:
        await found.add("a")
        counted = []
        for move in ("crash now", "stop now", "crash now", "stop now", "release", "crash now"):
            lock = await accept(found)
            if move == "crash now":
                await found.transact(
                    lambda unit, lock=lock: running_jobs.crash(unit, found.place("a"), lock, CRASHED, EPOCH)  # type: ignore[misc]
                )
            elif move == "stop now":
                await found.transact(lambda unit, lock=lock: running_jobs.stop(unit, found.place("a"), lock, None))  # type: ignore[misc]
            else:
                await found.transact(lambda unit, lock=lock: running_jobs.release(unit, found.place("a"), lock))  # type: ignore[misc]
            counted.append(run_data.attempts_of((await record(found)).run_data))
    assert counted == [1, 1, 2, 2, 0, 1]


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
async def test_resubmitting_a_job_that_waits_leaves_what_is_known_of_its_runs() -> None:
    async with layer() as found:
        lock = await running(found)
        await found.transact(lambda unit: running_jobs.crash(unit, found.place("a"), lock, CRASHED, EPOCH))
        await found.transact(lambda unit: creation.resubmit(unit, found.place("a"), Spec("other", 0, EPOCH)))
        assert run_data.attempts_of((await record(found)).run_data) == 1
        await found.transact(lambda unit: creation.resubmit(unit, found.place("a"), Spec("other", 5, EPOCH)))
        told = await record(found)
    assert (kinds(told), run_data.attempts_of(told.run_data), run_data.error_of(told.run_data)) == (
        [A, S, C, A],
        1,
        ERROR,
    )


@in_virtual_time
async def test_a_job_with_as_much_data_as_can_be_still_crashes_and_ends() -> None:
    async with layer() as found:
        full = found.store.limits.value - 3_325
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
