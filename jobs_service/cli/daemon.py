"""What `serve` runs: a service until a signal comes. Floor: command line."""

from __future__ import annotations

import asyncio
import os
import signal

import structlog

from jobs_service import JobsService
from jobs_service.cli import signals


async def run(service: JobsService) -> None:
    """Run a service until SIGTERM or SIGINT; a second one ends the process at once, with exit code 128 + its number.

    Logs `serving` (store, pid) when everything is ready, `draining` (signal) and `stopped`.

    Raises:
        StoreError: the store cannot be opened.
        SupervisorFailed: the tree gave up.
    """
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
