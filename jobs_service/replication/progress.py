"""Progress reports of a running replication, by its job."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from jobs_service import JobCanceled, RunningJob, StoreError
from jobs_service.replication.replicator import Replicator
from jobs_service.replication.status import progress_message
from jobs_service.replication.tally import Tally

INTERVAL: Final = 2.0
"""Seconds between two reports; a job without progress reports nothing."""

ASK_PENDING: Final = 30.0
"""Seconds between two requests to the source for the number of remaining changes."""


class ProgressReporter:
    """Reports the progress of one run.

    Args:
        job: the job of the run.
        replicator: the replicator of the run.
        tally: the counters of the run.
    """

    def __init__(self, job: RunningJob, replicator: Replicator, tally: Tally) -> None:
        self._job = job
        self._replicator = replicator
        self._tally = tally
        self._before = self._figures()
        self._bytes, self._written = 0, tally.statistics.docs_written
        self._total: int | None = None
        self._asked_at: float | None = None

    async def run(self) -> None:
        """Report until canceled."""
        clock = asyncio.get_running_loop()
        last, was_moving = clock.time(), False
        while True:
            await asyncio.sleep(INTERVAL)
            has_moved = self._figures() != self._before
            if has_moved or was_moving:  # once more when it stands still: with a rate of 0
                now = clock.time()
                await self._report(now, now - last)
                last = now
            was_moving = has_moved

    async def _report(self, now: float, seconds: float) -> None:
        self._before = self._figures()
        if self._asked_at is None or now - self._asked_at >= ASK_PENDING:
            self._asked_at = now
            copied = self._tally.copied  # workers go on until the answer comes
            pending = await self._replicator.pending()
            self._total = None if pending is None else copied + pending
        done, total = self._tally.copied, self._total
        if total is not None or self._tally.rows > done:
            total = max(total or 0, self._tally.rows)  # newer rows of the feed are pending as well
        with contextlib.suppress(JobCanceled, StoreError):  # the runner cancels it soon; the next report comes later
            await self._job.progress(done, None if total is None else max(total, done), self._message(seconds))

    def _message(self, seconds: float) -> str:
        written, size = self._tally.statistics.docs_written, self._tally.bytes_written
        documents, bytes = (written - self._written) / seconds, (size - self._bytes) / seconds
        self._written, self._bytes = written, size
        return progress_message(documents, bytes, self._tally.statistics.doc_write_failures)

    def _figures(self) -> tuple[int, ...]:
        return (
            self._tally.rows,
            self._tally.copied,
            self._tally.statistics.docs_written,
            self._tally.statistics.doc_write_failures,
        )
