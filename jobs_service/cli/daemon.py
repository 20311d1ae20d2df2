"""What `serve` runs: a service until a signal comes. Floor: command line."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from typing import Final

import structlog

from jobs_service import JobsService
from jobs_service.cli import signals

GC_THRESHOLDS: Final = (20_000, 20, 20)
"""The process is the service's alone, and jobs come and go by the thousand: collecting every 700 costs a fifth."""


async def run(service: JobsService) -> None:
    """Run a service until SIGTERM or SIGINT; a second one ends the process at once, with exit code 128 + its number.

    Logs `serving` (store, pid) when everything is ready, `draining` (signal) and `stopped`.

    Raises:
        StoreError: the store cannot be opened.
        SupervisorFailed: the tree gave up.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    log = structlog.get_logger("jobs_service.cli")
    stop = asyncio.Event()

    def react(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(128 + number)
        log.info("draining", signal=number.name)
        stop.set()

    with signals.handled(react, signal.SIGTERM, signal.SIGINT):
        async with service as jobs:
            log.info("serving", store=jobs.store.address, pid=os.getpid())
            await stop.wait()
        log.info("stopped")
