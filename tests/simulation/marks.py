"""Whether connections to the simulated cluster remove the marks of their commits: each once, soon, none too early."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from jobs_service.store.base import SYSTEM_KEYS
from jobs_service.store.commit_marks import HAPPENED
from jobs_service.store.fdb.client import may_have_committed
from jobs_service.store.overlay import CLEAR, STAMPED_VALUE
from jobs_service.testing import SimulatedTransaction
from jobs_service.testing.cluster import ClientError, SimulatedStore

if TYPE_CHECKING:
    from tests.simulation.run import Run

_MOST: Final = 4
"""Marks that one commit removes beside its own."""
_AT_ONCE: Final = 1.0
"""Seconds within which a tombstone is written where it takes no time to speak of."""
_FOUND_OUT: Final = 3.0
"""Seconds after a tombstone within which who has written it goes on, or looks again because its caller has gone."""


class _Made:
    """What is known of the marks that one connection has made since it was opened.

    Attributes:
        all: the commits, by the keys of their marks.
        may: those that it may remove.
        must: those of them that it must know of, and from when on, on the loop's clock, seconds.
        removes: of each commit that is not known to have happened, the marks that it removes.
        stones: the last tombstone of each.
        sent: the commits and tombstones that were not answered when they were looked at last.
    """

    def __init__(self) -> None:
        self.all: dict[bytes, SimulatedTransaction] = {}
        self.may: set[bytes] = set()
        self.must: dict[bytes, float] = {}
        self.removes: dict[bytes, list[bytes]] = {}
        self.stones: dict[bytes, SimulatedTransaction] = {}
        self.sent: list[tuple[SimulatedTransaction, bytes, bool, asyncio.Future[None]]] = []


class MarkCheck:
    """Looks at every commit that is sent, and at its answer.

    A mark may be removed when its commit is known to have happened, or to be prevented by a tombstone. What a commit
    was to remove that has not happened is to be removed by a later one.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._cluster = cluster = run.world.cluster
        self._made: dict[SimulatedStore, _Made] = {}
        self._has_slow_reads = "slow_read" in run.world.choices.rates
        self._submit, self._drop = cluster.submit, cluster.drop_watches
        cluster.submit = self._submitted  # type: ignore[method-assign]
        cluster.drop_watches = self._closed  # type: ignore[method-assign]

    def _closed(self, store: SimulatedStore, why: str) -> None:
        """A connection is closed: it forgets what it has not removed."""
        self._made.pop(store, None)
        self._drop(store, why)

    def _submitted(self, transaction: SimulatedTransaction) -> asyncio.Future[None]:
        made = self._made.setdefault(transaction.store, _Made())
        marks = [write for write in transaction.log if write[1].startswith(SYSTEM_KEYS)]
        own = [key for operation, key, _, last in marks if operation == STAMPED_VALUE and last == HAPPENED]
        stones = [key for operation, key, _, last in marks if operation == STAMPED_VALUE and last != HAPPENED]
        # Not as a callback of each answer: that would take a turn of the loop, and change the schedule.
        made.sent = [each for each in made.sent if not self._answered(made, *each)]
        if own:
            self._look(transaction, made, [key for operation, key, _, _ in marks if operation == CLEAR])
            made.all[own[0]] = transaction
            made.removes[own[0]] = [key for operation, key, _, _ in marks if operation == CLEAR and key in made.all]
        for key in stones:
            made.stones[key] = transaction
            for each in (key, *made.removes.get(key, ())):
                made.must.pop(each, None)
        answer = self._submit(transaction)
        made.sent += [(transaction, key, bool(own), answer) for key in own or stones]
        return answer

    def _look(self, transaction: SimulatedTransaction, made: _Made, removed: list[bytes]) -> None:
        """Complain about what a commit removes, or leaves to be removed."""
        now, process = self._cluster.loop.time(), transaction.process
        for key in removed:
            # What a clone has from another process it knows no more of than that one.
            is_there = self._cluster.versions.get(key) is not None
            if key in made.all and not is_there and key not in made.may and not self._came_late(made.all[key]):
                self._run.complain(f"marks: a commit of {process} removes one that is not there, or may come yet")
            made.may.discard(key)
        left = [key for key, since in made.must.items() if since < now and key not in removed]
        was_paused = process is None or process.pauses
        if left and len(removed) < _MOST and not was_paused:
            self._run.complain(f"marks: a commit of {process} removes {len(removed)}, and leaves {len(left)}")
            made.must.clear()
        for key in removed:
            made.must.pop(key, None)

    def _came_late(self, transaction: SimulatedTransaction) -> bool:
        """Whether a commit has happened after it was answered that nobody knows: its mark may have been swept since."""
        return transaction.timed_out and transaction.commit_version is not None

    def _answered(self, made: _Made, transaction: SimulatedTransaction, key: bytes, own: bool, answer: Any) -> bool:
        """Take note of what has become of a commit or a tombstone, if it was answered; return whether it was."""
        if not answer.done():
            return False
        now, error = self._cluster.loop.time(), None if answer.cancelled() else answer.exception()
        if own and error is None:
            made.removes.pop(key, None)
            self._settle(made, [key], now)
        elif own and isinstance(error, ClientError) and not may_have_committed(error.code):
            self._settle(made, made.removes.pop(key, []), now)
        elif own:
            made.may.update(made.removes.get(key, ()))
            if transaction.commit_version is not None:
                made.may.add(key)
        elif error is None and made.stones[key] is transaction:
            # If that took long, its caller may have gone meanwhile, and nobody have waited for it.
            is_known = now - transaction.began < _AT_ONCE and not self._has_slow_reads
            since = now + _FOUND_OUT if is_known else float("inf")
            self._settle(made, [key, *made.removes.get(key, ())], since)
        return True

    def _settle(self, made: _Made, keys: Sequence[bytes], since: float) -> None:
        made.may.update(keys)
        made.must.update(dict.fromkeys(keys, since))
