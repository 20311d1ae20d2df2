"""A worker process of the demonstration, written as a user would write one, with the public interface.

Run as `python -m jobs_service.cli.verbs.quickstart.worker STORE TYPE NAME DIRECTORY`. It takes jobs of the type until
none is left, and writes the compressed files into the directory.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import lzma
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jobs_service
from jobs_service import JobsService, RunningJob, WorkerConflict
from jobs_service.cli import exits
from jobs_service.cli.logging import configure

PACKAGE = Path(jobs_service.__file__).parent
HEARTBEAT = 0.4
DICTIONARY = 1 << 20
SEARCH_SECONDS = 2.0
FIRST_SEARCH_SECONDS = 30.0
"""The first worker is killed while it searches: on a slow machine that comes late."""

LEAST_SETTINGS = 6


async def work(store: str, type: str, name: str, directory: Path) -> None:
    """Take jobs of the type until none is left."""
    run = {"compress": compress_file, "archive": compress_package}[type]
    async with JobsService(store, supervise=False) as jobs:
        while (job := await jobs.accept(type, timeout=0)) is not None:
            try:
                async with _heartbeat(job):
                    result = await run(job, name, directory)
                await job.finish({**job.data, **result})
            except* WorkerConflict:
                # On a busy machine the job may have counted as lost; another worker has it now.
                pass


async def compress_file(job: RunningJob, name: str, directory: Path) -> dict[str, Any]:
    """Compress the file that the job's data names."""
    content = (PACKAGE / job.data["file"]).read_bytes()
    smaller = await asyncio.to_thread(_compress, content)
    target = directory / f"{job.data['file']}.xz"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(smaller)
    return {"worker": name, "before": len(content), "after": len(smaller)}


async def compress_package(job: RunningJob, name: str, directory: Path) -> dict[str, Any]:
    """Compress all files into one archive, as small as possible."""
    progress, smallest = await _search(job, name)
    (directory / "package.tar.xz").write_bytes(smallest)
    return progress


async def _search(job: RunningJob, name: str) -> tuple[dict[str, Any], bytes]:
    """Try settings for a while, and write the progress into the job's data."""
    loop = asyncio.get_running_loop()
    content = _archive(job.data["files"])
    progress: dict[str, Any] = {}
    smallest = content
    deadline = loop.time() + (SEARCH_SECONDS if job.attempts > 1 else FIRST_SEARCH_SECONDS)
    for tried, settings in enumerate(_settings(), 1):
        candidate = await asyncio.to_thread(_compress, content, **settings)
        smallest = min(smallest, candidate, key=len)
        progress = {"worker": name, "tried": tried, "before": len(content), "after": len(smallest)}
        if tried.bit_count() == 1:
            await job.update({**job.data, **progress})
        if tried >= LEAST_SETTINGS and loop.time() > deadline:
            break
    return progress, smallest


@asynccontextmanager
async def _heartbeat(job: RunningJob) -> AsyncIterator[None]:
    """Send heartbeats for the job while the block runs, however long one step takes."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT)
            await job.update()

    async with asyncio.TaskGroup() as group:
        beating = group.create_task(beat())
        yield
        beating.cancel()


def _compress(content: bytes, **settings: int) -> bytes:
    return lzma.compress(content, filters=[{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": DICTIONARY, **settings}])


def _archive(files: list[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for file in files:
            archive.add(PACKAGE / file, arcname=f"jobs_service/{file}")
    return buffer.getvalue()


def _settings() -> Iterator[dict[str, int]]:
    """Yield all settings that LZMA allows: lc + lp is at most 4."""
    for lp, lc, pb in itertools.product(range(4, -1, -1), range(5), range(4, -1, -1)):
        if lc + lp <= 4:
            yield {"lc": lc, "lp": lp, "pb": pb}


def main() -> None:
    """Run the worker that the arguments describe."""
    configure("error")
    store, type, name, place = sys.argv[1:]
    directory = Path(place)
    directory.mkdir(exist_ok=True)
    asyncio.run(work(store, type, name, directory))


if __name__ == "__main__":
    sys.exit(exits.guard(main))
