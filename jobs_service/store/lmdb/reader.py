"""The reader's thread: serves reads, and notices commits of other processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

import lmdb

from jobs_service.errors import StoreLost
from jobs_service.settings import Settings
from jobs_service.store.base import Watch
from jobs_service.store.lmdb.errors import store_error
from jobs_service.store.lmdb.responder import Responder
from jobs_service.store.lmdb.state import LmdbTransaction, State
from jobs_service.store.lmdb.thread_calls import Answer, Deadlines, Request, failed

_QUIET: Final = 1.0
"""Seconds without a commit after which the checks for other processes' commits become rarer."""
_RARER: Final = 2
_LOOKS_REST: Final = 10
"""Least wait after looking up all watched keys, as a multiple of the time that it took."""
_CHECK_PERIOD: Final = 1.0
"""Seconds between two checks of the store's file names while there are no requests."""
_LONGEST_REST: Final = 3.0
"""Most seconds of that wait: a look-up also takes very long while the process, or its disk, stands still."""


class Reader(Responder):
    """The part of a store on the reader's thread; the store sets the attributes."""

    _settings: Settings
    _environment: lmdb.Environment | None
    _reads: SimpleQueue[Request[Any] | Callable[[], None] | None]
    _read_deadlines: Deadlines
    # Numbers of LMDB transactions: those that the writer has committed, and the newest one that was seen.
    _own_commits: deque[int]
    _seen_commit: int
    # Times of the clock: when another commit was seen last, and when the watched keys may be looked up again.
    _seen_at: float
    _next_look: float
    _next_check: float
    _reads_run: int

    def _run_reader(self) -> None:
        environment = self._environment
        assert environment is not None
        reads = self._reads
        poll = self._settings.watch_poll
        stopping = False
        self._seen_at = self._monotonic()
        while not stopping:
            batch: list[Request[Any]] = []
            try:
                # Each check wakes the thread, and for most of a day nothing happens.
                rest = poll if self._monotonic() - self._seen_at < _QUIET else _RARER * poll
                timeout = rest if self._watches else None
                self._at("reader: waits" if timeout is None else "reader: rests")
                item = reads.get(timeout=timeout)
                while True:
                    if item is None:
                        stopping = True
                    elif isinstance(item, Request):
                        batch.append(item)
                    item = reads.get_nowait()
            except Empty:
                pass
            try:
                self._read(environment, batch)
            except StoreLost:
                self._fail_for_good(self._read_deadlines, batch)
            except Exception as error:
                self._send_answers(self._read_deadlines, failed(batch, store_error(self.address, error)), [])
        self._at("reader: ends")

    def _read(self, environment: lmdb.Environment, batch: list[Request[Any]]) -> None:
        """Check for other processes' commits, run a batch of reads on one state, and answer them.

        Raises:
            StoreLost: the next process would read another store, so the reads are not answered.
        """
        if self._use.lost is not None:
            raise self._use.lost
        self._at("reader: begins")
        transaction = self._map.begin()
        self._at("reader: has begun")
        try:
            number = transaction.id()
            if not batch and number == self._seen_commit:
                self._look_at_files()  # the usual case
                return
            state = State(transaction)
            fired = self._changed_elsewhere(state, number)
            self._at("reader: has looked for commits")
            answers = []
            watched: list[Watch] = []
            for request in batch:
                if not request.take():
                    continue
                answer = Answer(request)
                answers.append(answer)
                if state.failure is not None:  # LMDB's transaction is useless
                    transaction.abort()
                    transaction = environment.begin()
                    state = State(transaction)
                self._run(answer, LmdbTransaction(state, self.limits, self.address, read_only=True))
                own = answer.transaction
                if own is not None:
                    watched += own.watches
                    own.end()
            self._reads_run += len(answers)
            self._at("reader: has run all")
            self._watches.register(watched, number)
            self._at("reader: has registered watches")
        finally:
            transaction.abort()
            self._map.end()
        if watched:
            fired += self._changed_since(number, watched)
        if answers or fired:
            self._use.check()
            self._at("reader: answers")
            self._send_answers(self._read_deadlines, answers, fired)

    def _look_at_files(self) -> None:
        """Check now and then, while there are no requests, that the store's files are still in place."""
        now = self._monotonic()
        if now >= self._next_check:
            self._next_check = now + _CHECK_PERIOD
            self._use.check()

    def _changed_elsewhere(self, state: State, number: int) -> list[Watch]:
        """Return the watches to fire after another process's commit since the last check."""
        seen = self._seen_commit
        if number == seen:
            return []
        now = self._monotonic()
        if now < self._next_look:
            return []  # the next check finds it
        self._at("reader: looks for commits")
        self._seen_commit = number
        self._seen_at = now
        own = 0
        while self._own_commits and self._own_commits[0] <= number:
            own += self._own_commits.popleft() > seen
        self._at("reader: has counted its own")
        # This process's own commits have fired their watches directly. One whose number is not in the list yet counts
        # as foreign: that check finds nothing, and is harmless.
        if number - seen <= own or not self._watches:
            return []
        try:
            fired = self._watches.changed_in(state, number)
        except lmdb.Error as error:
            # Which of them have changed is unknown: all look for themselves.
            state.failure = store_error(self.address, error)
            fired = self._watches.take_all()
        # With thousands of watches this takes milliseconds. The pause keeps it rare while others commit all the time.
        ended = self._monotonic()
        self._next_look = ended + min(_LOOKS_REST * (ended - now), _LONGEST_REST)
        return fired

    def _changed_since(self, number: int, watched: list[Watch]) -> list[Watch]:
        """Return the new watches whose keys changed before their registration."""
        transaction = self._map.begin()
        try:
            newer = transaction.id()
            self._at("reader: looks again")
            if newer == number:
                return []
            return self._watches.changed_in(State(transaction), newer, [watch.key for watch in watched])
        except lmdb.Error:
            self._own_commits.clear()  # so that the next check looks at all watched keys, whoever has committed
            return []
        finally:
            transaction.abort()
            self._map.end()
