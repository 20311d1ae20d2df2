"""Runs transaction functions on a thread of the embedded store, and brings their answers back to the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import lmdb

from jobs_service.errors import StoreDamaged, StoreError, StoreLost, anew
from jobs_service.log import EventLog
from jobs_service.store.base import Limits, Watch
from jobs_service.store.driving import drive, ran_too_long
from jobs_service.store.lmdb.errors import store_error
from jobs_service.store.lmdb.file_use import FileUse
from jobs_service.store.lmdb.memory_map import MemoryMap
from jobs_service.store.lmdb.process_locks import ProcessLocks
from jobs_service.store.lmdb.room import Room
from jobs_service.store.lmdb.state import LmdbTransaction
from jobs_service.store.lmdb.thread_calls import Answer, Deadlines, Request, failed
from jobs_service.store.lmdb.watches import Watches

log = EventLog("jobs_service.store")


class Responder:
    """The common base of a store's writer and reader; the store sets the attributes."""

    address: str
    limits: Limits
    _loop: asyncio.AbstractEventLoop | None
    _monotonic: Callable[[], float]
    # Called with the names of points at which a test may stop a thread, or another one go first.
    _at: Callable[[str], object]
    _room: Room
    _has_logged_damage: bool
    _watches: Watches
    _use: FileUse
    _map: MemoryMap
    _processes: ProcessLocks
    _when_lost: dict[Callable[[StoreLost], object], None]

    @property
    def location(self) -> str:
        """The address for logs: it names the same store in every working directory."""
        raise NotImplementedError

    def _run(self, answer: Answer, own: LmdbTransaction) -> None:
        """Run one transaction function and look up its watched keys; keep the result or the error in the answer."""
        answer.error = None
        began = self._monotonic()
        try:
            answer.result = drive(answer.request.function(own))
            if own.writes:
                self._room.admit(own)
            if own.watches:
                own.settle_watches()
            took = self._monotonic() - began
            if took > self.limits.seconds:
                raise ran_too_long(took, self.limits)
        except BaseException as error:
            answer.error = store_error(self.address, error) if isinstance(error, lmdb.Error) else error
            own.end()
            if own.watches:
                self._tell(lose, own.watches)
        else:
            answer.transaction = own

    def _fail_for_good(self, deadlines: Deadlines, requests: Iterable[Request[Any]]) -> None:
        """Fail requests for good: the next process would open other files of the store."""
        lost = self._use.lost
        assert lost is not None
        self._tell(self._lose_all, lost)
        self._tell(self._answer, deadlines, failed(requests, lost), [])

    def _send_answers(self, deadlines: Deadlines, answers: list[Answer], fired: list[Watch]) -> None:
        for answer in answers:
            answer.request.is_answered = True
            if isinstance(answer.error, StoreDamaged) and not self._has_logged_damage:
                self._has_logged_damage = True
                log.error("store_damaged", store=self.location, error=str(answer.error))
        self._tell(self._answer, deadlines, answers, fired)

    # Back on the loop

    def _lose_all(self, lost: StoreLost) -> None:
        """Fail all waiting callers and watches; the registered callbacks come first, to end their own work."""
        for callback in [*self._when_lost]:
            callback(lost)
        self._when_lost.clear()
        for watch in self._watches.take_all():
            watch.fire(anew(lost))

    def _tell(self, callback: Callable[..., object], *args: Any) -> None:
        assert self._loop is not None
        # A closed loop raises; then nobody waits for an answer.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _answer(self, deadlines: Deadlines, answers: list[Answer], fired: list[Watch]) -> None:
        for answer in answers:
            request = answer.request
            future = request.future
            transaction = answer.transaction
            if transaction is not None:
                for watch in transaction.watches:
                    watch.attach(self._watches.forget)
                request.watches = transaction.watches
            if future.done():
                if answer.error is None:
                    self._abandon(request, answer.result)
            elif answer.error is None:
                future.set_result(answer.result)
            else:
                future.set_exception(answer.error)
        deadlines.forget_answered()
        for watch in fired:
            watch.fire()

    def _abandon(self, request: Request[Any], *result: Any) -> None:
        """Give an unclaimed result to the request's `abandoned`; without one, drop the request's watches."""
        if request.abandoned is None:
            for watch in request.watches:
                watch.cancel()
        elif self._loop is not None and (result or request.future.exception() is None):
            # In a callback of its own: if it fails, the other requests still get their answers.
            self._loop.call_soon(request.abandoned, result[0] if result else request.future.result())


def lose(watches: list[Watch]) -> None:
    """Fail the watches of a transaction that did not commit."""
    for watch in watches:
        watch.fire(StoreError("the watch was lost: its transaction did not commit"))
