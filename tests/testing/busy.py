"""A busy world, and the digest of all that happens in it: equal runs have equal digests, in whatever Python process.

Run as a program: `python -m tests.testing.busy SEED` prints the digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys

from jobs_service import JobsError, JobsService, StoreError
from jobs_service.model import JobType
from jobs_service.testing import FAULTS, Plan, Process, World
from jobs_service.testing.loop import describe

TYPES: list[JobType] = ["mail", "video", "report", ("tuple", 7)]
JOBS = [f"job-{number}" for number in range(4)]
ROUNDS = 4


class Busy:
    """Several services, types, subscribers and kinds of fault; groups of tasks, sets of tasks, tasks that are canceled.

    Args:
        plan: what is run.

    Attributes:
        world: the world; it has run.
        notes: how many events there were.
        digest: of every callback that ran, every event, and what is in the store at the end.
    """

    def __init__(self, plan: Plan | int) -> None:
        self.world = world = World(plan, rates=dict.fromkeys(FAULTS, 0.03), latency=0.01, log_level=10)
        self.run_data = 0
        digest = hashlib.blake2b()
        world.loop.trace = lambda handle: digest.update(f"{world.loop.time()!r} {describe(handle)}\n".encode())
        world.run(self._main)
        digest.update(f"{world.loop.fingerprint}\n".encode())
        for event in world.events:
            digest.update(f"{event}\n".encode())
        view = world.cluster.versions.scan_at(world.cluster.versions.version, b"", b"\xff\xff", False)
        digest.update(repr(list(view)).encode())
        self.digest = digest.hexdigest()

    def _note(self, process: Process, text: str) -> None:
        self.run_data += 1
        self.world.note(text, process)

    async def _main(self, world: World) -> None:
        workers = [world.start("worker", self._work, ahead=ahead) for ahead in (0, 30, -5)]
        creator = world.start("creator", self._create)
        world.loop.call_later(3, workers[0].kill)
        world.loop.call_later(4, workers[1].pause)
        world.loop.call_later(6, workers[1].go_on)
        await asyncio.sleep(5)
        world.start("worker", self._work)
        await asyncio.wait_for(creator.ended(), 300)

    async def _create(self, process: Process) -> None:
        async with process.service() as jobs:
            for type in TYPES:
                await self._until_it_gets_through(jobs, type)
            for _ in range(ROUNDS):
                async with asyncio.TaskGroup() as group:
                    for type in TYPES:
                        for id in JOBS:
                            group.create_task(self._watch_over(process, jobs, type, id))

    async def _until_it_gets_through(self, jobs: JobsService, type: JobType) -> None:
        while True:
            try:
                return await jobs.set_type_timeout(type, 3)
            except StoreError:
                continue

    async def _watch_over(self, process: Process, jobs: JobsService, type: JobType, id: str) -> None:
        """Add a job and follow it, beside others in a set."""
        try:
            await jobs.add(type, id, {"type": str(type)}, if_exists="resubmit")
            followers = {asyncio.create_task(self._follow(process, jobs, type, id, limit)) for limit in (1, 3, 9)}
            done, pending = await asyncio.wait(followers, timeout=4)
            self._note(process, f"{type!r} {id}: {[task.get_name() for task in done]}")
            for task in pending:
                task.cancel()
            await asyncio.gather(*done, *pending, return_exceptions=True)
        except (JobsError, TimeoutError) as error:
            self._note(process, f"{type!r} {id}: {error!r}")

    async def _follow(self, process: Process, jobs: JobsService, type: JobType, id: str, limit: int) -> None:
        seen = 0
        async for event in jobs.subscribe(type, id):
            self._note(process, f"{type!r} {id}: {event.state} {event.data}")
            seen += 1
            if seen == limit:
                return

    async def _work(self, process: Process) -> None:
        async with process.service() as jobs, asyncio.TaskGroup() as group:
            for type in TYPES:
                group.create_task(self._work_off(process, jobs, type))

    async def _work_off(self, process: Process, jobs: JobsService, type: JobType) -> None:
        while True:
            try:
                job = await jobs.accept(type, timeout=5, spread=2)
                if job is not None:
                    job = await job.update({"by": str(process)})
                    await asyncio.sleep(process.sources.uniform(0, 1))
                    await job.finish()
            except JobsError as error:
                self._note(process, f"{type!r}: {error!r}")
                await asyncio.sleep(0.5)


if __name__ == "__main__":
    print(Busy(int(sys.argv[1])).digest)
