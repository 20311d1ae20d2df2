"""What the processes do that tests of copies kill: they copy, and are killed at a moment that the test chooses."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

from jobs_service.copying import Batch, CopyStep, copy_jobs
from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.lmdb import LmdbStore
from tests.copying.support import opened


def copy(source: str, target: str, steps: int, seconds: float) -> None:
    """Copy one embedded store into another, anew; be killed so long after so many steps of removing or copying."""
    left = steps

    def progress(step: CopyStep, done: int, total: int | None) -> None:
        nonlocal left
        left -= step in (CopyStep.REMOVING, CopyStep.COPYING)
        if not left:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()

    async def work() -> None:
        stores = [LmdbStore(path, settings=Settings()) for path in (source, target)]
        async with opened(*stores):
            await copy_jobs(*stores, sources=Sources(), anew=True, batch=Batch(jobs=20), progress=progress)

    asyncio.run(work())


def hold(path: str) -> None:
    """Have an embedded store open until the end."""

    async def work() -> None:
        async with opened(LmdbStore(path, settings=Settings())):
            await asyncio.Event().wait()

    asyncio.run(work())
