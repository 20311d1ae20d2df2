"""Plain functions as handlers, in real time: each in a thread of its own, with a job whose operations wait."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable

import pytest

from jobs_service import BlockingJob, JobsService, JobTransaction, Outcome, Progress, Retry, RunningJob
from tests.runner.support import PATIENCE_OF_THREADS, THREAD, TYPE, add, all_ended, ended, stopped


async def test_a_plain_function_runs_in_a_thread_of_its_own_and_what_it_returns_is_the_result(
    jobs: JobsService,
) -> None:
    meeting = threading.Barrier(3, timeout=PATIENCE_OF_THREADS)

    @jobs.handler(TYPE, slots=3)
    def work(job: BlockingJob, args: list[int]) -> dict[str, object]:
        meeting.wait()  # all three run at the same time
        return {"sum": sum(args), "thread": threading.current_thread().name, "id": job.id, "attempt": job.attempts}

    run = asyncio.create_task(jobs.run())
    for id in "abc":
        await jobs.enqueue(work, [1, 2, 3], id=id)
    for job in await all_ended(jobs, "abc"):
        assert job.result == {"sum": 6, "thread": THREAD, "id": job.id, "attempt": 1}
    await stopped(run)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: OSError("disk"), ("OSError", "disk")),
        (lambda: SystemExit(3), ("SystemExit", "3")),
        (lambda: KeyboardInterrupt(), ("KeyboardInterrupt", "")),
        (lambda: GeneratorExit(), ("RuntimeError", "the handler raised GeneratorExit")),
        (lambda: Retry(5, "busy"), ("Retry", "busy")),
        (lambda: asyncio.CancelledError(), ("JobsError", "the handler canceled itself")),
    ],
    ids=["OSError", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "Retry", "CancelledError"],
)
async def test_what_a_plain_function_raises_is_the_jobs_error(
    jobs: JobsService, make: Callable[[], BaseException], expected: tuple[str, str]
) -> None:
    @jobs.handler(TYPE, max_attempts=1)
    def work() -> None:
        raise make()

    run = asyncio.create_task(jobs.run())
    await add(jobs, "a")
    job = await ended(jobs, "a")
    assert job.outcome is Outcome.FAILED
    assert job.error is not None
    assert (job.error.type, job.error.message) == expected
    await stopped(run)


async def test_a_plain_function_has_a_coroutines_operations_by_the_same_names(jobs: JobsService) -> None:
    names = [name for name in vars(RunningJob) if not name.startswith("_")]
    assert not [name for name in names if not hasattr(BlockingJob, name)]
    seen: list[object] = []

    @jobs.handler(TYPE, max_attempts=1)
    def work(job: BlockingJob) -> str:
        seen.extend([bool(job.progress), job.progress.done, bool(job.resubmit), len(job.lock)])
        job.progress(1, 2, "half")
        if job.data == "to be given back":
            job.update("given back")
            job.release()
        return "done"

    run = asyncio.create_task(jobs.run())
    await jobs.set_type_timeout(TYPE, 60)
    await jobs.add(TYPE, "a", "to be given back")
    job = await ended(jobs, "a")
    assert (job.data, job.result, job.attempts) == ("given back", "done", 1)
    assert isinstance(job.progress, Progress)
    assert (job.progress, job.progress.attempt) == (Progress(1, 2, "half"), 1)
    assert seen[:4] == [False, 0, False, 16]
    await stopped(run)


async def test_a_blocking_call_within_a_transaction_function_is_refused_and_nobody_waits_for_it(
    jobs: JobsService,
) -> None:
    @jobs.handler(TYPE, max_attempts=1)
    def work(job: BlockingJob) -> None:
        async def effects(tx: JobTransaction) -> None:
            job.update("within")

        job.finish_with(effects if job.id == "coroutine" else lambda tx: job.report(1))

    run = asyncio.create_task(jobs.run())
    await add(jobs, "coroutine", "plain")
    for id in ("coroutine", "plain"):
        error = (await ended(jobs, id)).error
        assert error is not None
        assert error.message.startswith("a transaction function may await nothing but its transaction")
    await stopped(run)


async def test_a_blocking_call_on_the_event_loop_is_refused(jobs: JobsService) -> None:
    loop = asyncio.get_running_loop()

    @jobs.handler(TYPE, max_attempts=1)
    def work(job: BlockingJob) -> None:
        async def elsewhere() -> None:
            job.update("on the loop")

        asyncio.run_coroutine_threadsafe(elsewhere(), loop).result()

    run = asyncio.create_task(jobs.run())
    await add(jobs, "a")
    error = (await ended(jobs, "a")).error
    assert error is not None
    assert "was used on the event loop" in error.message
    await stopped(run)


def test_a_function_that_never_returns_does_not_keep_the_program_from_ending() -> None:
    program = """
        import asyncio, threading
        from jobs_service import JobsService

        async def main():
            jobs = JobsService("memory:")
            begun = asyncio.Event()
            loop = asyncio.get_running_loop()

            @jobs.handler("work", grace=0.05)
            def work():
                loop.call_soon_threadsafe(begun.set)
                threading.Event().wait()

            async with jobs:
                run = asyncio.create_task(jobs.run())
                await jobs.enqueue(work, id="a")
                await begun.wait()
                run.cancel()
                await asyncio.wait([run])
                print((await jobs.get("work", "a")).state)

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "pending"
