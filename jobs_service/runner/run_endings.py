"""The ends of runs: written together, within the limits of a transaction, and retried until they are stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from jobs_service.errors import DirectoryMoved, RecordDamaged, StoreDamaged, StoreError, WorkerConflict
from jobs_service.layer import running_jobs
from jobs_service.layer.batch_bounds import Batch
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.log import EventLog
from jobs_service.model import JobType
from jobs_service.runner.execution import Execution
from jobs_service.runner.run import Run, RunEnd, ServiceAccess
from jobs_service.uncancelable import own_task

_MOST_BYTES: Final = 500_000
"""Most record bytes that one transaction rewrites. It is far below the limits of stores, so that the next transaction
is prepared during the write of this one.
"""

_MOST_REWRITTEN: Final = 100
"""Number of ends refused by the store at which the accept of jobs pauses: damage may last, and runs pile up."""


class RunEndings:
    """Writes the ends of one handler's runs.

    Args:
        service: the service in which the runner runs.
        type: the jobs' type.
        execution: makes the end of a job whose result cannot be stored.
        log: the handler's log.
        settled: called with each run whose end is stored, or never will be.

    Attributes:
        room: set while few enough ends are being retried to accept more jobs.
    """

    def __init__(
        self, service: ServiceAccess, type: JobType, execution: Execution, log: EventLog, settled: Callable[[Run], None]
    ) -> None:
        self._service = service
        self._type = type
        self._execution = execution
        self._log = log
        self._on_settled = settled
        self._batch = Batch(service.batch.jobs, min(service.batch.bytes, _MOST_BYTES))
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Run, RunEnd]] = []
        self._rewriting: set[asyncio.Task[None]] = set()
        self.room = asyncio.Event()
        self.room.set()
        self._has_left = False
        self._unsettled = 0
        self._settled = asyncio.Event()
        self._settled.set()

    def write(self, run: Run, end: RunEnd) -> None:
        """Write the end of a run, together with other ends of this turn of the loop."""
        if not self._unsettled:
            self._settled.clear()
        self._unsettled += 1
        self._queue(run, end)

    async def settle(self, seconds: float) -> None:
        """Wait until all ends are written, at most so many seconds.

        Jobs whose ends are not stored by then count as lost after their type's timeout.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()
        self._has_left = True  # nobody would wait for an attempt that begins after this
        for task in self._rewriting:
            task.cancel()
        if self._rewriting:
            await asyncio.wait(self._rewriting)

    def _queue(self, run: Run, end: RunEnd) -> None:
        if not self._waiting:
            self._loop.call_soon(self._send_all)
        self._waiting.append((run, end))

    def _settle(self, run: Run) -> None:
        """Note that the end of a run is written, or never will be."""
        self._unsettled -= 1
        if not self._unsettled:
            self._settled.set()
        self._on_settled(run)

    def _send_all(self) -> None:
        """Write the ends of one turn of the loop, in transactions of a limited size."""
        waiting, self._waiting = self._waiting, []
        size = _size_of_all(waiting)
        # Nearly always all fit, and a sum is cheaper than to measure them one by one.
        if size <= self._batch.bytes and len(waiting) <= self._batch.jobs:
            self._send(waiting, size)
            return
        sent = 0
        while sent < len(waiting):
            part = self._batch.front(waiting, sent, _size_of)
            self._send(part, _size_of_all(part))
            sent += len(part)

    def _send(self, part: Sequence[tuple[Run, RunEnd]], size: int) -> None:
        keys = self._keys()
        answered = False

        def answer(errors: Sequence[Exception | None]) -> None:
            nonlocal answered
            late, answered = answered, True
            details = self._log.wants_details()  # asked once for all: most runs log nothing else
            for (run, end), error in zip(part, errors, strict=True):
                # The first answer was that the store does not know, and each of these ends is being written again. Now
                # it turns out whether the first transaction took effect.
                if late:
                    run.stored = error is None
                    continue
                if error is None:
                    if details or run.ending:
                        self._log_written(run, end)
                    self._settle(run)
                else:
                    self._not_written(run, end, error)

        calls = [
            (end.operation, run.place(keys), (run.lock, *end.arguments))
            for run, end in part
            if end.operation is not None
        ]
        self._service.end_all(calls, answer, size)

    def _keys(self) -> TypeKeys:
        return self._service.keys(self._type)

    def _log_written(self, run: Run, end: RunEnd) -> None:
        if run.ending or end.error is None:  # the others were logged when their handler had ended
            end.log_to(self._log, run.job, self._execution.redaction, self._loop.time() - run.at)

    def _not_written(self, run: Run, end: RunEnd, error: Exception) -> None:
        # If a run were given up for a damaged page, its job would run again after each timeout: its end waits.
        passes = isinstance(error, DirectoryMoved | StoreDamaged) or (isinstance(error, StoreError) and error.retryable)
        if passes and not self._has_left:
            self._log.warning("store_retry", error=str(error), id=run.job.id)
            self._rewrite(run, end)
        elif passes:
            self._log.error("end_not_written", id=run.job.id, reason="the runner has ended", exc_info=error)
            self._settle(run)
        elif isinstance(error, WorkerConflict):
            self._log_ended_otherwise(run, end)
            self._settle(run)
        elif end.operation is running_jobs.finish and not (end.instead or isinstance(error, RecordDamaged)):
            # The store does not take the result. It will take an error instead, whose size is bounded.
            failure = self._execution.too_large(run.job, error)
            failure.log_to(self._log, run.job, self._execution.redaction)
            self._queue(run, failure)
        else:
            # Where a part of the record is damaged, the activity monitor sets the job aside after its timeout.
            self._log.error("end_not_written", id=run.job.id, exc_info=error)
            self._settle(run)

    def _log_ended_otherwise(self, run: Run, end: RunEnd) -> None:
        """Log that another worker has the job, or that its handler has ended it in its own transaction."""
        if run.stored:
            self._log_written(run, end)
        elif run.ending:
            end.log_dropped(self._log, run.job, self._execution.redaction)
        else:
            self._log.warning("job_taken_over", id=run.job.id)

    def _rewrite(self, run: Run, end: RunEnd) -> None:
        """Retry the write of an end after a passing error, until it is stored or another worker has the job."""
        operation = end.operation
        assert operation is not None

        async def once() -> None:
            await self._service.end((operation, run.place(self._keys()), (run.lock, *end.arguments)))

        async def write() -> None:
            try:
                while True:
                    try:
                        await self._service.retried(once, type=self._type, id=run.job.id)
                    except DirectoryMoved:
                        continue
                    break
            except asyncio.CancelledError:
                self._log.error("end_not_written", id=run.job.id, reason="the runner has ended")
                self._settle(run)
                raise
            except Exception as error:
                self._not_written(run, end, error)
            else:
                self._log_written(run, end)
                self._settle(run)

        task = own_task(write(), name=f"end of {run.job.type!r}/{run.job.id!r}")
        self._rewriting.add(task)
        if len(self._rewriting) >= _MOST_REWRITTEN:
            self.room.clear()
        task.add_done_callback(self._rewritten)

    def _rewritten(self, task: asyncio.Task[None]) -> None:
        self._rewriting.discard(task)
        if len(self._rewriting) < _MOST_REWRITTEN:
            self.room.set()


def _size_of(ended: tuple[Run, RunEnd]) -> int:
    """Return the bytes that an end rewrites: the whole record, not only its new parts."""
    run, end = ended
    return run.size + end.size


def _size_of_all(part: Sequence[tuple[Run, RunEnd]]) -> int:
    return sum([run.size + end.size for run, end in part])
