"""See jobs_service at work: jobs are added, run, lost with a killed worker, found again and finished.

`scripts/quickstart` runs it. It takes a few seconds, on a store in a temporary directory that is removed at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Coroutine
from typing import Any

from jobs_service import Job, JobsService, JobTransaction, RunningJob

RECEIPTS = 200
CHAPTERS = 5
SENT = b"quickstart/sent"

store = sys.argv[1] if sys.argv[1:] else f"lmdb:{tempfile.mkdtemp(prefix='jobs-service-quickstart-')}"
jobs = JobsService(store)


@jobs.handler("receipt", slots=20)
async def receipt(job: RunningJob, order: int) -> Job:
    """Count an e-mail in the transaction that ends the job: exactly once, whatever dies."""

    async def count(tx: JobTransaction) -> None:
        tx.kv.add(SENT, (1).to_bytes(8, "little"))

    return await job.finish_with(count)


@jobs.handler("report")
async def report(job: RunningJob) -> str:
    """Write a report by chapters. The first attempt stays at the third one until its worker is killed."""
    for chapter in range(1, CHAPTERS + 1):
        await job.progress(chapter, CHAPTERS, "chapters")
        await asyncio.sleep(3600 if chapter == 3 and job.attempts == 1 else 0.2)
    return f"{CHAPTERS} chapters, by process {os.getpid()}"


async def take_orders(tx: JobTransaction) -> None:
    """Write orders and the jobs that they cause, in one transaction."""
    tx.kv[b"quickstart/orders"] = str(RECEIPTS).encode()
    await tx.enqueue_many(receipt, range(RECEIPTS))
    await tx.enqueue(report, id="july")


async def follow_the_report(workers: list[Process]) -> None:
    """Start a worker, kill it at the third chapter, start another, and tell each event until the report is there."""
    async with jobs.subscribe("report", "july") as events:
        async for event in events:
            progress = event.progress
            say(
                f"the report is {event.state.value}" + (f": {progress.done} of {CHAPTERS} chapters" if progress else "")
            )
            if event.state == "pending":
                if workers:
                    say("Its death was noticed and the job is back. There is nothing to repair.")
                workers.append(await asyncio.create_subprocess_exec(sys.executable, __file__, store))
                say(f"Worker process {workers[-1].pid} starts.")
            elif progress and progress.done == 3 and len(workers) == 1:
                workers[0].kill()
                await workers[0].wait()
                say(f"kill -9 {workers[0].pid}: the worker is dead in the middle of its jobs, and could tell nobody.")


async def tell() -> None:
    """Tell the whole story."""
    workers: list[Process] = []
    async with jobs:
        await jobs.transact(take_orders)
        say(f"One transaction has written {RECEIPTS} orders, a receipt job for each, and a report job.")
        try:
            await follow_the_report(workers)
            say(f"It says: {await jobs.result(report, 'july')}.")
            async for job in jobs.list("receipt"):
                await jobs.wait("receipt", job.id, "finished")
        finally:
            for worker in workers:
                if worker.returncode is None:
                    worker.send_signal(signal.SIGTERM)
                    await worker.wait()
        count: bytes | None = await jobs.transact(lambda tx: tx.kv.get(SENT))
        sent = int.from_bytes(count or b"", "little")
        say(f"{sent} receipts were sent for {RECEIPTS} orders: each exactly once.")


async def work() -> None:
    """Run the handlers until the task is canceled, as `jobs-service serve` does."""
    async with jobs:
        await jobs.run()


def until_signal(program: Coroutine[Any, Any, None]) -> int:
    """Run a program, and cancel it on SIGINT or SIGTERM; return an exit code."""
    received: list[int] = []

    def cancel(number: int, task: asyncio.Task[None]) -> None:
        received.append(number)
        task.cancel()

    async def run() -> None:
        task = asyncio.create_task(program)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, cancel, number, task)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
    return 128 + received[0] if received else 0


def say(text: str) -> None:
    """Print a sentence with the seconds since the start."""
    print(f"{time.monotonic() - began:5.1f} s  {text}", flush=True)


if __name__ == "__main__":
    logging.getLogger("jobs_service").setLevel(logging.ERROR)  # a killed worker is worth a warning, but not here
    began = time.monotonic()
    if sys.argv[1:]:
        sys.exit(until_signal(work()))
    try:
        code = until_signal(tell())
    finally:
        shutil.rmtree(store.removeprefix("lmdb:"))
    if not code:
        print("\nTry next: .venv/bin/jobs-service --help, and the tutorial in docs/tutorial.md.")
    sys.exit(code)
