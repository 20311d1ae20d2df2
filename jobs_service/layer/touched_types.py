"""The types whose jobs one transaction touches, and the signals that it sends to workers, monitors and notifiers.

A signal is a counter or stamp that others watch. This module notes which ones are due; `flush` of the unit of work
writes them.
"""

from __future__ import annotations

import math

from jobs_service import run_data
from jobs_service.layer import awake_types
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.loaded_jobs import LoadedJobs
from jobs_service.layer.record import Record
from jobs_service.layer.record_format import SCHEDULED
from jobs_service.layer.retention import FOR_EVER, Retention


class TouchedTypes(LoadedJobs):
    """The types whose jobs a transaction touches: their waiters are woken, and monitors watch over them.

    Attributes:
        retentions: how long finished jobs are kept, of the types for which it was read already.
    """

    __slots__ = (
        "_active",
        "_awake",
        "_taken_away",
        "_watched",
        "_woken",
        "retentions",
    )

    retentions: dict[bytes, Retention]
    _active: dict[bytes, TypeKeys]
    _awake: set[bytes]
    _taken_away: dict[TypeKeys, None]
    _watched: dict[TypeKeys, float]
    _woken: dict[bytes, TypeKeys]

    @property
    def has_watched(self) -> bool:
        """Whether there is anything for `wake_types` to do."""
        return bool(self._watched) or self._is_followed

    def watch_over(self, keys: TypeKeys, record: Record) -> None:
        """Have monitors watch over a job that did not run before: the type of one that did is awake."""
        if record.lock is not None:
            if keys.awake not in self._awake:
                self._watched[keys] = -math.inf
        elif record.place == SCHEDULED:
            assert record.run_at is not None
            self._watch_over_from(keys, record.run_at)
        elif not record.place and (expires := run_data.expires_at(record.run_data)) is not None:
            self._watch_over_from(keys, expires)

    def _watch_over_from(self, keys: TypeKeys, time: float) -> None:
        self._watched[keys] = min(time, self._watched.get(keys, time))

    async def wake_types(self) -> None:
        """Wake the types with jobs that a monitor must watch over; to be called before `flush`."""
        if self._is_followed:
            # The rows of changes that this transaction writes need a monitor, which removes them if nobody else does.
            for keys in self._active.values():
                if self._followed.get(keys.followed):
                    self._watched[keys] = -math.inf
        for keys, time in self._watched.items():
            if keys.awake not in self._awake:
                await awake_types.wake(self.transaction, self.keyspace, keys, time)
        self._awake.update(keys.awake for keys in self._watched)

    def wake(self, keys: TypeKeys) -> None:
        """Wake the workers that wait for jobs of the type, and the subscribers of its jobs."""
        self._woken[keys.data] = self._active[keys.data] = keys

    def woke(self, keys: TypeKeys) -> bool:
        """Whether this transaction has made a job of the type pending: a watch that it sets does not fire for that."""
        return keys.data in self._woken

    def take_away(self, keys: TypeKeys) -> None:
        """Wake the workers of running jobs of the type: one of them has lost its job, or should end it."""
        self._taken_away[keys] = None

    async def is_paused(self, keys: TypeKeys) -> bool:
        """Whether the type is paused; an accept conflicts with a transaction that changes that."""
        # An accept needs to know as well whether the type is awake: on a cluster this is one round trip for both.
        paused, is_awake = await self.transaction.snapshot.get_many((keys.paused, keys.awake))
        self.transaction.add_read_conflict_key(keys.paused)
        if is_awake is not None:
            self.transaction.add_read_conflict_key(keys.awake)
            self._awake.add(keys.awake)
        return paused is not None

    def pause(self, keys: TypeKeys) -> None:
        """Stop all workers from accepting jobs of the type."""
        self.transaction.set(keys.paused, b"")

    def resume(self, keys: TypeKeys) -> None:
        """Let workers accept jobs of the type again, and wake those that wait."""
        self.transaction.clear(keys.paused)
        self._woken[keys.data] = keys

    def set_retention(self, keys: TypeKeys, retention: Retention) -> None:
        """Set how long jobs of the type are kept that finish from now on."""
        self.retentions[keys.retention] = retention
        self.transaction.set(keys.retention, retention.encode())

    async def retention(self, keys: TypeKeys) -> Retention:
        """Return how long finished jobs of the type are kept."""
        retention = self.retentions.get(keys.retention)
        if retention is None:
            # A snapshot read, so that a change of retention is no conflict for every finish: it may take effect later.
            packed = await self.transaction.snapshot.get(keys.retention)
            retention = self.retentions[keys.retention] = FOR_EVER if packed is None else Retention.decode(packed)
        return retention
