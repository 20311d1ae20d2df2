"""What each operation leaves in the job's history."""

from __future__ import annotations

from jobs_service import HistoryKind, Job, JobError, JobsService, JobState, JobTransaction
from tests.service.support import J1, LOST, T1, accepted, eventually, running, state

A, S, X, L, F, K = (
    HistoryKind.ADDED,
    HistoryKind.STARTED,
    HistoryKind.STOPPED,
    HistoryKind.LOST,
    HistoryKind.FINISHED,
    HistoryKind.CANCELED,
)


def told(job: Job) -> tuple[list[HistoryKind], int]:
    """Return what happened to a job, oldest first, and how many attempts it has had."""
    return [event.kind for event in reversed(job.history)], job.attempts


async def test_every_operation_leaves_its_event_and_counts_attempts(quiet: JobsService) -> None:
    assert told(await quiet.add(T1, J1)) == ([A], 0)
    worker = await accepted(quiet)
    assert told(worker) == ([A, S], 1)
    assert worker.history[0].detail == quiet._context.sources.worker
    assert told(await worker.update("x")) == ([A, S], 1)
    assert told(await worker.progress(1)) == ([A, S], 1)
    assert told(await worker.release()) == ([A, S, X], 0)
    worker = await accepted(quiet)
    assert told(worker) == ([A, S, X, S], 1)
    assert told(await worker.finish(result=1, error=JobError("E", "no"))) == ([A, S, X, S, F], 1)
    again = await quiet.resubmit(T1, J1)
    assert told(again) == ([A, S, X, S, F, A], 0)
    assert (again.result, again.error, again.progress) == (None, None, None)
    await accepted(quiet)
    await quiet.remove(T1, J1)
    canceled = await quiet.get(T1, J1)
    assert told(canceled) == ([A, S, X, S, F, A, S], 1)
    assert [event.at for event in canceled.history] == sorted((event.at for event in canceled.history), reverse=True)


async def test_several_operations_in_one_transaction_leave_their_events_in_order(quiet: JobsService) -> None:
    async def work(tx: JobTransaction) -> Job:
        await tx.add(T1, J1)
        first = await tx.accept(T1)
        assert first is not None
        await tx.update(first, "x")
        await tx.release(first)
        second = await tx.accept(T1)
        assert second is not None
        await tx.finish(second, result=2)
        return await tx.resubmit(T1, J1)

    job = await quiet.transact(work)
    assert told(job) == ([A, S, X, S, F, A], 0)
    assert told(await quiet.get(T1, J1)) == told(job)


async def test_a_lost_job_says_so(jobs: JobsService) -> None:
    await jobs.set_type_timeout(T1, LOST)
    await running(jobs)

    async def is_lost() -> bool:
        return await state(jobs) is JobState.PENDING

    await eventually(is_lost)
    assert told(await jobs.get(T1, J1)) == ([A, S, L], 1)


async def test_a_history_keeps_its_newest_20_events(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    for _ in range(12):
        await (await accepted(quiet)).release()
    assert told(await quiet.get(T1, J1)) == ([S, X] * 10, 0)
