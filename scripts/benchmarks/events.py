"""How long events take, in the same process and in another one."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time

from benchmarks.base import PROGRAM, TIMEOUT, TYPE, Figure, Measurements, work
from jobs_service import JobsService, NewJob


class EventMeasurements(Measurements):
    """From a change of a job to whoever waits for it."""

    async def finish_to_event(self) -> list[Figure]:
        """From `finish` to the event at a subscriber of the same process, without holdoff."""
        took: list[float] = []
        with self.service(notify_holdoff=0) as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                for number in range(self.count(300)):
                    await jobs.add(TYPE, f"job-{number}")
                    running = await jobs.accept(TYPE)
                    assert running is not None
                    async with jobs.subscribe(TYPE, running.id) as events:
                        await anext(events)
                        began = time.perf_counter()
                        await running.finish()
                        await anext(events)
                        took.append(1000 * (time.perf_counter() - began))
        return [Figure("finish_to_event_ms", statistics.median(took), "ms", 2.0, False, "finish to event, median")]

    async def subscriptions(self) -> list[Figure]:
        """10,000 subscriptions to 10,000 jobs, all finished."""
        total = self.count(10_000)
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(total)))

                async def subscriber(number: int) -> None:
                    states = []
                    async for event in jobs.subscribe(TYPE, f"job-{number}"):
                        states.append(event.state)
                        begun.discard(number)
                        if not begun:
                            all_begun.set()
                    assert states[-1] == "finished"

                begun = set(range(total))
                all_begun = asyncio.Event()
                async with asyncio.TaskGroup() as group:
                    for number in range(total):
                        group.create_task(subscriber(number))
                    await all_begun.wait()
                    began = time.perf_counter()
                    await work(jobs, 200)
                seconds = time.perf_counter() - began
        return [
            Figure(
                "subscriptions_10k_s", seconds, "s", 3.0, False, "10,000 subscriptions, all jobs run: last event told"
            )
        ]

    async def other_process(self) -> list[Figure]:
        """From an `add` and a `finish` here to a worker and a subscriber in another process."""
        accepts: list[float] = []
        events: list[float] = []
        with self.address() as address:
            async with JobsService(address) as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                await jobs.set_type_timeout("watched", TIMEOUT)
                other = await asyncio.create_subprocess_exec(
                    sys.executable, PROGRAM, "--other", address, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
                assert other.stdin is not None
                assert other.stdout is not None
                for number in range(self.count(100)):
                    id = f"job-{number}"
                    await jobs.add("watched", id)
                    running = await jobs.accept("watched")
                    assert running is not None
                    other.stdin.write(f"{id}\n".encode())
                    assert await other.stdout.readline() == b"ready\n"
                    # Beyond the holdoff of what came before, as a lonely event is.
                    await asyncio.sleep(0.1)
                    began = time.monotonic()
                    await jobs.add(TYPE, id)
                    accepts.append(1000 * (float(await other.stdout.readline()) - began))
                    began = time.monotonic()
                    await running.finish()
                    events.append(1000 * (float(await other.stdout.readline()) - began))
                other.stdin.close()
                await other.wait()
        return [
            Figure("accept_other_process_ms", statistics.median(accepts), "ms", 20, False, "add to accept elsewhere"),
            Figure("event_other_process_ms", statistics.median(events), "ms", 80, False, "finish to event elsewhere"),
        ]


async def other(address: str) -> None:
    """The other process: tells when a job arrives and when an event does."""
    async with JobsService(address) as jobs:
        while id := (await asyncio.to_thread(sys.stdin.readline)).strip():
            async with jobs.subscribe("watched", id) as events:
                await anext(events)
                accept = asyncio.create_task(jobs.accept(TYPE))
                await asyncio.sleep(0)
                print("ready", flush=True)
                job = await accept
                print(time.monotonic(), flush=True)
                assert job is not None
                async for event in events:
                    if event.state == "finished":
                        print(time.monotonic(), flush=True)
                await job.finish()
