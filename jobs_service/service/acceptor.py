"""Accepting jobs: single attempts, and waiting while there are no jobs."""

from __future__ import annotations

import asyncio
from typing import Final

from jobs_service.actors.context import Context
from jobs_service.batching.group_commit import GroupCommit
from jobs_service.layer import activity, queue_counts
from jobs_service.layer.candidates import AcceptTerms
from jobs_service.layer.entry import running_job
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.queue import EmptyQueue
from jobs_service.model import RunningJob, Worker
from jobs_service.service.abandoned_jobs import AbandonedJobs
from jobs_service.service.store_access import StoreAccess
from jobs_service.service.waiting_workers import WaitingWorkers
from jobs_service.store.base import Transaction

_MOST_ATTEMPTS: Final = 10
"""Attempts of a non-waiting accept when making due jobs ready yields none on its terms."""


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
            if await activity.is_paused(transaction, keys):
                return 0
            return await queue_counts.count_due(transaction, keys, now, limit, max_priority)

        return await self._access.read(count)
