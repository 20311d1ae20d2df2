"""Accepting jobs: single attempts, waiting while there are none, and giving back the jobs of callers that have gone."""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from operator import itemgetter
from typing import Final, Generic, TypeVar

from jobs_service.actors.context import Context, StoreAccess
from jobs_service.batching import GroupCommit
from jobs_service.errors import StoreError, StoreUnavailable, WorkerConflict
from jobs_service.layer import reads, running_jobs, type_settings
from jobs_service.layer.keyspace import TypeKeys, pack_id
from jobs_service.layer.queue import AcceptTerms, EmptyQueue
from jobs_service.layer.record import Entry, running_job
from jobs_service.log import EventLog
from jobs_service.model import JobId, JobType, RunningJob, Worker
from jobs_service.store.base import Transaction, Watch
from jobs_service.uncancelable import own_task

log = EventLog("jobs_service")

_TRIES: Final = 5
"""Tries to release a job while the commit's outcome is unknown."""

T = TypeVar("T")

_MOST_ATTEMPTS: Final = 10
"""Attempts of a non-waiting accept when making due jobs ready yields none on its terms."""


# Attempts


class Acceptor:
    """Accepts jobs for the application and for the runner.

    Args:
        context, access: of the service.
        operations: group commit, in which simultaneous accepts on the same terms share one read of the queue.
        waiting: the workers that wait for jobs.
        abandoned: releases jobs that were accepted for canceled callers.
        worker: the Worker of accepted jobs.
    """

    def __init__(
        self,
        context: Context,
        access: StoreAccess,
        operations: GroupCommit,
        waiting: WaitingWorkers[list[RunningJob]],
        abandoned: AbandonedJobs,
        worker: Worker,
    ) -> None:
        self._context = context
        self._access = access
        self._operations = operations
        self._waiting = waiting
        self._abandoned = abandoned
        self._worker = worker

    async def accept(self, keys: TypeKeys, terms: AcceptTerms, seconds: float | None) -> list[RunningJob]:
        """Take jobs from the front of a type's queue, at least one unless time runs out.

        Args:
            keys: of the type.
            terms: which jobs, and how many.
            seconds: to wait for a job; None for ever.
        """
        self._operations.own_loop()  # before the caller joins a line
        if seconds == 0:
            attempts = 0
            while isinstance(found := await self.attempt(keys, terms, watch=False), EmptyQueue):
                attempts += found.due_in == 0
                if attempts == _MOST_ATTEMPTS:
                    return []
            return found

        async def attempt() -> list[RunningJob] | EmptyQueue:
            found = await self.attempt(keys, terms)
            if isinstance(found, EmptyQueue) and not self._access.is_open:
                # Waiting workers were woken before this answer came, and nothing would fire a watch that begins now.
                if found.watch is not None:
                    found.watch.cancel()
                self._access.check_open()
            return found

        try:
            async with asyncio.timeout(seconds):
                return await self._waiting.get((keys, terms), attempt)
        except TimeoutError:
            return []

    async def attempt(self, keys: TypeKeys, terms: AcceptTerms, *, watch: bool = True) -> list[RunningJob] | EmptyQueue:
        """Accept jobs in one transaction.

        Args:
            keys, terms: as for `accept`.
            watch: whether to return a watch on the queue if there are no jobs.
        """
        if self._access.inside or not self._access.is_open:
            self._access.check_open()
        answer = self._operations.accept(keys, terms, watch=watch)
        try:
            found = await answer
        except asyncio.CancelledError:
            # The answer may have come in the same turn of the loop as the caller's cancellation.
            if not answer.cancelled() and answer.exception() is None:
                self._abandoned.give_back_all(answer.result())
            raise
        return found if isinstance(found, EmptyQueue) else [running_job(entry, self._worker) for entry in found]

    async def count_due(self, keys: TypeKeys, limit: int, max_priority: bytes | None) -> int:
        """Return the number of a type's due jobs, up to a limit and a priority; 0 while the type is paused."""
        now = self._context.sources.wall_time()

        async def count(transaction: Transaction) -> int:
            if await type_settings.is_paused(transaction, keys):
                return 0
            return await reads.count_due(transaction, keys, now, limit, max_priority)

        return await self._access.read(count)


# Waiting


class _Line:
    """The workers that wait for the same jobs."""

    __slots__ = ("behind", "entered", "inside", "watch")

    def __init__(self) -> None:
        # The watch of the first in line.
        self.watch: Watch | None = None
        # How many workers have ever entered the line, and how many are in it now.
        self.entered = 0
        self.inside = 0
        # (number, turn) of each of the others, by number
        self.behind: deque[tuple[int, asyncio.Future[None]]] = deque()

    def enter(self) -> int:
        """Add a worker to the line, and return its number."""
        self.entered += 1
        self.inside += 1
        return self.entered

    def wake(self, count: int) -> None:
        """Have the next workers in line try.

        Args:
            count: number of workers.
        """
        while count and self.behind:
            _, turn = self.behind.popleft()
            if not turn.done():
                turn.set_result(None)
                count -= 1


class WaitingWorkers(Generic[T]):
    """All lines of one service: one for each pair of a type and accept terms."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}

    async def get(self, key: Hashable, attempt: Callable[[], Awaitable[T | EmptyQueue]]) -> T:
        """Repeat an attempt until it finds jobs; wait without polling in between.

        Args:
            key: of the line; the same for all workers that wait for the same jobs.
            attempt: tries to accept in one transaction.

        Returns:
            The result of the successful attempt.
        """
        line = self._lines.setdefault(key, _Line())
        number = line.enter()
        queued = False
        try:
            while True:
                queued = False
                found = await attempt()
                if not isinstance(found, EmptyQueue):
                    line.wake(2)
                    return found
                if line.watch is not None:
                    if found.watch is not None:
                        found.watch.cancel()
                    queued = True
                    await self._queue(line, number)
                elif found.watch is not None:
                    await self._watch(line, found.watch, found.due_in)
        except BaseException:
            # Another worker gets the turn: this one may have been woken for a job that it will not take now.
            if not queued:
                line.wake(1)
            raise
        finally:
            line.inside -= 1
            if not line.inside:
                del self._lines[key]

    def wake_all(self) -> None:
        """Have all workers try, to learn that the service is closed."""
        for line in self._lines.values():
            if line.watch is not None:
                line.watch.fire()
            line.wake(len(line.behind))

    async def _queue(self, line: _Line, number: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.behind.insert(bisect(line.behind, number, key=itemgetter(0)), (number, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with contextlib.suppress(ValueError):  # a wake that came after the cancellation has removed it already
                    line.behind.remove((number, turn))
            else:
                line.wake(1)  # canceled as its turn came
            raise

    async def _watch(self, line: _Line, watch: Watch, due_in: float | None) -> None:
        line.watch = watch
        try:
            # The queue has changed, a scheduled job is due, or the watch was lost: in any case the next step is to try.
            with contextlib.suppress(TimeoutError, StoreError):
                async with asyncio.timeout(due_in):
                    await watch.wait()
        finally:
            line.watch = None
            watch.cancel()


# Jobs of callers that have gone


class AbandonedJobs:
    """Releases the jobs of callers that have gone, in the background; leaving the service waits for it.

    Without that they would stay locked until their type's timeout.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._releases: set[asyncio.Task[None]] = set()
        self._is_awaited = False

    def give_back_all(self, found: list[Entry] | EmptyQueue) -> None:
        """Release the jobs, or cancel the watch, from an accept whose caller has gone."""
        if not isinstance(found, EmptyQueue):
            for entry in found:
                self.give_back(entry)
        elif found.watch is not None:
            found.watch.cancel()

    def give_back(self, entry: Entry) -> None:
        """Release an accepted job."""
        assert entry.record is not None
        assert entry.record.lock is not None
        work = self._release(entry.keys.type, entry.id, entry.record.lock)
        task = own_task(work)
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def until_given_back(self) -> None:
        """Wait until all releases have ended; from now on none is retried."""
        self._is_awaited = True
        while self._releases:
            await asyncio.wait(self._releases)

    def begin_anew(self) -> None:
        """Retry failed releases from now on: the service is open again."""
        self._is_awaited = False

    async def _release(self, type: JobType, id: JobId, lock: bytes) -> None:
        place = (self._context.keyspace.of(type), id, pack_id(id))
        failure: Exception | None = None
        for _ in range(_TRIES):
            try:
                await self._context.transact(lambda unit: running_jobs.release(unit, place, lock))
                return
            except StoreUnavailable as error:
                # The job may have been released or not: the next try finds out, and no other worker has its lock.
                failure = error
                if self._is_awaited:
                    break
            except (WorkerConflict, StoreError) as error:
                if failure is not None and isinstance(error, WorkerConflict):
                    return  # an earlier try has released it
                failure = error
                break
        log.warning("release_failed", type=type, id=id, error=str(failure))
