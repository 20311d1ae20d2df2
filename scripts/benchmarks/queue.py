"""How many jobs are added, accepted and finished per second."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from functools import partial

from benchmarks.base import TIMEOUT, TYPE, Figure, Measurements, timed, together, work
from jobs_service import JobsService, JobTransaction, NewJob


class QueueMeasurements(Measurements):
    """Callers and workers of one process."""

    async def add_concurrent(self) -> list[Figure]:
        """`add` by 1,000 callers at once; on a cluster by 256."""
        total = self.count(60_000)
        callers = min(256 if self.on_a_cluster else 1000, total)
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)

                async def caller(first: int) -> None:
                    for number in range(first, total, callers):
                        await jobs.add(TYPE, f"job-{number}", {"n": number})

                seconds = await timed(lambda: together(caller(first) for first in range(callers)))
        return [Figure("add_concurrent", total / seconds, "/s", 40_000, True, f"add by {callers:,} concurrent callers")]

    async def rows(self) -> list[Figure]:
        """A row of the application and a job in one transaction, by 500 callers at once."""
        total = self.count(20_000)
        callers = min(500, total)
        with tempfile.TemporaryDirectory(prefix="jobs-bench-") as directory:
            async with JobsService(f"sqlite:{directory}/app.db") as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                await jobs.transact(lambda tx: tx.sql("create table users (id integer primary key, mail text unique)"))

                async def adding(first: int) -> None:
                    for number in range(first, total, callers):

                        async def function(tx: JobTransaction, number: int = number) -> None:
                            await tx.add(TYPE, f"alone-{number}", {"n": number})

                        await jobs.transact(function)

                async def signing_up(first: int) -> None:
                    for number in range(first, total, callers):

                        async def function(tx: JobTransaction, number: int = number) -> None:
                            await tx.sql("insert into users (mail) values (?)", f"{number}@example.org")
                            await tx.add(TYPE, f"welcome-{number}", {"n": number})

                        await jobs.transact(function)

                alone = await timed(lambda: together(adding(first) for first in range(callers)))
                seconds = await timed(lambda: together(signing_up(first) for first in range(callers)))
        what = f"a row and a job in one transaction of an sqlite: store, by {callers:,} concurrent callers"
        return [
            Figure("rows", total / seconds, "/s", 5_000, True, what),
            Figure("rows_ratio", alone / seconds, "", 0.5, True, "the same beside transactions with the job alone"),
        ]

    async def add_many(self) -> list[Figure]:
        """`add_many` of 100,000."""
        total = self.count(100_000)
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                new = [NewJob(f"job-{number}", {"n": number}) for number in range(total)]
                seconds = await timed(lambda: jobs.add_many(TYPE, new))
        return [Figure("add_many", total / seconds, "/s", 80_000, True, "add_many of 100,000")]

    async def accept_finish(self) -> list[Figure]:
        """`accept` and `finish` by 200 hand-written workers; on a cluster by 64."""
        total = self.count(20_000)
        workers = 64 if self.on_a_cluster else 200
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(total)))
                seconds = await timed(lambda: work(jobs, workers, spread="adaptive" if self.on_a_cluster else 1))
        what = f"accept + finish by {workers} workers, jobs"
        return [Figure("accept_finish", total / seconds, "/s", 12_000, True, what)]

    async def accept_many_finish(self) -> list[Figure]:
        """`accept_many` of 100, one concurrent `finish` each."""
        total = self.count(20_000)
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(total)))

                async def worker() -> None:
                    while taken := await jobs.accept_many(TYPE, 100, timeout=0):
                        await together(job.finish() for job in taken)

                seconds = await timed(lambda: together(worker() for _ in range(4)))
        return [
            Figure("accept_many_finish", total / seconds, "/s", 16_000, True, "accept_many of 100, a finish each, jobs")
        ]

    async def add_single(self) -> list[Figure]:
        """One `add` after the other."""
        took: list[float] = []
        with self.service() as service:
            async with service as jobs:
                await jobs.set_type_timeout(TYPE, TIMEOUT)
                for number in range(self.count(2000)):
                    began = time.perf_counter()
                    await jobs.add(TYPE, f"job-{number}", {"n": number})
                    took.append(1000 * (time.perf_counter() - began))
        took.sort()
        return [
            Figure("add_median_ms", statistics.median(took), "ms", 0.5, False, "single add, median"),
            Figure("add_p99_ms", took[int(len(took) * 0.99)], "ms", 2.0, False, "single add, 99th percentile"),
        ]

    async def sync_add(self) -> list[Figure]:
        """`add` of the plain service by 200 threads, and by one, against the asyncio one by 200 tasks, and by one."""
        from jobs_service import sync  # a checkout (`--against`) may have none

        total, single = self.count(20_000), self.count(1000)
        callers = min(200, total)

        async def asynchronous() -> tuple[float, float]:
            with self.service() as service:
                async with service as jobs:
                    await jobs.set_type_timeout(TYPE, TIMEOUT)

                    async def caller(first: int) -> None:
                        for number in range(first, total, callers):
                            await jobs.add(TYPE, f"job-{number}", {"n": number})

                    began = time.process_time()
                    await together(caller(first) for first in range(callers))
                    used = time.process_time() - began
                    times = [await timed(partial(jobs.add, TYPE, f"single-{number}")) for number in range(single)]
                    return used, statistics.median(times)

        def plain() -> tuple[float, float]:
            with self.service() as service, sync.JobsService(service) as jobs:
                jobs.set_type_timeout(TYPE, TIMEOUT)

                def caller(first: int) -> None:
                    for number in range(first, total, callers):
                        jobs.add(TYPE, f"job-{number}", {"n": number})

                threads = [threading.Thread(target=caller, args=(first,)) for first in range(callers)]
                began = time.process_time()
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                used = time.process_time() - began
                times: list[float] = []
                for number in range(single):
                    start = time.perf_counter()
                    jobs.add(TYPE, f"single-{number}")
                    times.append(time.perf_counter() - start)
                return used, statistics.median(times)

        by_tasks = await asynchronous()
        await self.fresh()
        by_threads = await asyncio.to_thread(plain)
        ratio = by_threads[0] / by_tasks[0]
        more = 1000 * (by_threads[1] - by_tasks[1])
        return [
            Figure("sync_add_cpu", ratio, "", 1.5, False, "processor time of add, 200 threads / 200 tasks"),
            Figure("sync_add_more_ms", more, "ms", 0.3, False, "single add by a thread, median more than by a task"),
        ]

    async def pending_growth(self) -> list[Figure]:
        """Rate of accept and finish with 1,000,000 pending jobs, against that with 1,000."""
        sample = self.count(5000)
        rates: list[float] = []
        for pending in (1000, self.count(1_000_000)):
            await self.fresh()
            with self.service() as service:
                async with service as jobs:
                    await jobs.set_type_timeout(TYPE, TIMEOUT)
                    await jobs.add_many(TYPE, (NewJob(f"job-{number}") for number in range(pending + sample)))
                    seconds = await timed(lambda jobs=jobs: work(jobs, 200, sample))  # type: ignore[misc]
            rates.append(sample / seconds)
        return [
            Figure("pending_growth", rates[1] / rates[0], "", 0.7, True, "accept + finish, 1,000,000 pending / 1,000")
        ]
