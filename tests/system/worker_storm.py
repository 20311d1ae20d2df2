"""Worker processes of one daemon, one of which is killed again and again under load: each job takes effect once.

`python -m tests.system.worker_storm` kills one of eight each second for a minute, and exits 1 with the reason when
something is not as it must be. The suite has a short form of it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from subprocess import Popen

from jobs_service import JobsService, JobState, NewJob
from jobs_service.store.base import Store
from tests.checker import assert_sound
from tests.cli.support import HANG, event_named, is_alive, serving
from tests.service.support import eventually

APPLICATION = """
import asyncio, random
from jobs_service import JobsService

jobs = JobsService("lmdb:store")

@jobs.handler("work", slots=20, max_attempts=None, grace=2)
async def work(job):
    await asyncio.sleep(random.uniform(0, 0.2))
    await job.finish_with(lambda tx: tx.kv.add(b"effects/" + job.id.encode(), (1).to_bytes(8, "little")))
"""


async def storm(directory: Path, processes: int, kills: int, every: float) -> dict[str, float]:
    """Kill workers while they run jobs, then end the daemon by SIGTERM.

    Args:
        directory: an empty one.
        processes: number of workers.
        kills: number of workers to kill.
        every: seconds between two kills.

    Returns:
        The numbers of jobs and of kills, and the seconds from SIGTERM to the end.

    Raises:
        AssertionError: a job took effect never or twice, or a process did not behave.
    """
    (directory / "app.py").write_text(APPLICATION)
    with serving("app:jobs", "--processes", str(processes), cwd=directory) as daemon:
        async with JobsService(f"lmdb:{directory / 'store'}") as jobs:
            adding = asyncio.create_task(_add(jobs))
            pids = await _kill(jobs, daemon, kills, every)
            adding.cancel()
            await asyncio.wait([adding])

            async def all_have_ended() -> bool:
                counts = (await jobs.counts("work"))["work"]
                return counts.jobs == counts.succeeded

            await eventually(all_have_ended)
            assert daemon.poll() is None
            began = time.monotonic()
            daemon.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(daemon.wait, HANG) == 0
            took = time.monotonic() - began
            assert not any(map(is_alive, pids))
            done = 0
            async for job in jobs.list("work"):
                assert job.state is JobState.FINISHED, job
                effects = await _effects(jobs.store, str(job.id))
                assert effects == 1, f"{job.id!r} took effect {effects} times"
                done += 1
            await assert_sound(jobs.store)
    return {"jobs": done, "kills": kills, "seconds to end": took}


async def _add(jobs: JobsService) -> None:
    """Keep some jobs waiting."""
    number = 0
    while True:
        if (await jobs.counts("work"))["work"].ready < 200:
            await jobs.add_many("work", [NewJob(str(number + each)) for each in range(200)])
            number += 200
        await asyncio.sleep(0.05)


async def _kill(jobs: JobsService, daemon: Popen[str], kills: int, every: float) -> set[int]:
    """Kill workers; return the ids of all that were seen."""
    seen: set[int] = set()
    for _ in range(kills):
        await asyncio.sleep(every)
        living: list[int] = []
        while not living:
            living = [each.pid for each in await jobs.processes() if each.role == "daemon" and is_alive(each.pid)]
        seen.update(living)
        os.kill(random.choice(living), signal.SIGKILL)
        assert event_named(daemon, "worker_ended")["how"] == "was ended by SIGKILL"
    return seen


async def _effects(store: Store, id: str) -> int:
    counted: bytes | None = await store.read(lambda transaction: transaction.get(b"effects/" + id.encode()))
    return int.from_bytes(counted or b"", "little")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        try:
            print(asyncio.run(storm(Path(place), processes=8, kills=60, every=1.0)))
        except AssertionError as error:
            sys.exit(f"{type(error).__name__}: {error}")
