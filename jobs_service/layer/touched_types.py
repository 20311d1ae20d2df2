"""The types whose jobs one transaction touches, and the signals that it sends to workers, monitors and notifiers.

A signal is a watched counter or stamp. This module notes the due signals; `flush` of the unit of work writes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from jobs_service import run_data
from jobs_service.errors import RecordDamaged, TransactionTooLarge
from jobs_service.layer import awake_types, changes
from jobs_service.layer.counters import IS_UNCOUNTED, Tally, lane_of_damaged, new_tally
from jobs_service.layer.entry import Entry
from jobs_service.layer.key_parts import STAMP_CODE
from jobs_service.layer.keyspace import Place, TypeKeys
from jobs_service.layer.loaded_jobs import LoadedJobs
from jobs_service.layer.record import NewSeq, Record
from jobs_service.layer.record_format import SCHEDULED
from jobs_service.model.type_state import FOR_EVER, Retention
from jobs_service.run_data import NEWEST
from jobs_service.sources import Sources

_MAX_ORDER: Final = 0xFFFF


class TouchedTypes(LoadedJobs):
    """The types whose jobs a transaction touches: their waiters are woken, and monitors watch over them.

    Attributes:
        retentions: of finished jobs, by type, as far as they were read.
    """

    __slots__ = (
        "_active",
        "_awake",
        "_left",
        "_orders",
        "_recounted",
        "_set_aside",
        "_taken_away",
        "_tallied",
        "_tallies",
        "_tally",
        "_watched",
        "_woken",
        "retentions",
        "sources",
    )

    retentions: dict[bytes, Retention]
    sources: Sources
    _active: dict[bytes, TypeKeys]
    _awake: set[bytes]
    _left: dict[Entry, Record]
    _orders: int
    _recounted: list[tuple[TypeKeys, int, int]]
    _set_aside: dict[tuple[TypeKeys, bytes], bytes]
    _taken_away: dict[TypeKeys, None]
    _tallied: TypeKeys | None
    _tallies: dict[TypeKeys, Tally]
    _tally: Tally
    _watched: dict[TypeKeys, float]
    _woken: dict[bytes, TypeKeys]

    @property
    def has_watched(self) -> bool:
        """Whether `settle` has anything to do."""
        return bool(self._watched) or self._is_followed or bool(self._set_aside)

    async def settle(self) -> None:
        """Do the work that needs reads for the touched jobs and types; to be called before `flush`."""
        await self.wake_types()
        if self._set_aside:
            await self._note_set_aside()

    def set_aside(self, keys: TypeKeys, packed_id: bytes, index_key: bytes) -> None:
        """Note that a job is in no index any more, as its record cannot be read, and have its subscribers told.

        Args:
            keys, packed_id: the job.
            index_key: of the entry by which it was found.
        """
        self._set_aside.setdefault((keys, packed_id), index_key)
        self._active[keys.data] = keys

    async def _note_set_aside(self) -> None:
        """Write the rows of jobs that are set aside now; those in an unknown state are no longer counted."""
        transaction = self.transaction
        for (keys, packed_id), index_key in self._set_aside.items():
            row, retrying = keys.set_aside + packed_id, keys.retrying + packed_id
            before, was_retrying, raw = await transaction.get_many((row, retrying, keys.data + packed_id))
            if before is not None or raw is None:
                continue
            transaction.clear(retrying)
            try:
                Record.decode(raw)
            except RecordDamaged:
                transaction.set(row, IS_UNCOUNTED)
                self._recounted.append((keys, lane_of_damaged(keys, index_key, was_retrying is not None), -1))
            else:  # its run data are damaged: it goes on to be counted in its state
                transaction.set(row, b"")

    def forget(self, place: Place, lane: int | None) -> None:
        """Make a job with an unreadable record disappear; it was counted in this lane, None for none."""
        keys, id, packed_id = place
        data_key = keys.data + packed_id
        self.damaged.pop(data_key, None)
        self._set_aside.pop((keys, packed_id), None)
        gone = self.entries[data_key] = Entry(keys, id, packed_id, None)
        gone.stored = gone.changed = True
        self._active[keys.data] = keys
        if lane is not None:
            self._recounted.append((keys, lane, -1))

    def tally(self, keys: TypeKeys) -> Tally:
        """Return the tally of a type's jobs."""
        if keys is not self._tallied:  # those of one type come together
            self._tallied = keys
            self._tally = self._tallies.setdefault(keys, new_tally())
        return self._tally

    def happened(self, keys: TypeKeys, event: int) -> None:
        """Count an event of a job."""
        self.tally(keys)[event] += 1

    def ran(self, keys: TypeKeys, record: Record, event: int) -> None:
        """Count the end of a job's run, and its length, if its record before tells that."""
        tally = self._tally if keys is self._tallied else self.tally(keys)
        tally[event, record.run_data[NEWEST]] += 1

    def watch_over(self, keys: TypeKeys, record: Record) -> None:
        """Have monitors watch over a job that did not run before: the type of a running job is awake."""
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

    def new_seq(self) -> NewSeq:
        """Return the next seq of this transaction."""
        order = self._orders
        if order > _MAX_ORDER:
            raise TransactionTooLarge(f"a transaction that moves more than {_MAX_ORDER + 1} jobs; split it")
        self._orders = order + 1
        return NewSeq(self.transaction.stamp, order.to_bytes(2, "big"))

    def _changes(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield rows for the jobs that have changed without a new row in ACTIVITY, by which notifiers find them."""
        changed: dict[TypeKeys, list[bytes]] = {}
        latest: TypeKeys | None = None
        ids: list[bytes] | None = None
        wants_new = False
        for entry in self.entries.values():
            record = entry.record
            if not entry.changed or (record is None and not entry.stored):
                continue
            if record is not None and record.lock is not None and record.seq.__class__ is not bytes:
                continue  # it has a new row in ACTIVITY, by which notifiers find it
            keys = entry.keys
            if keys is not latest:  # jobs of one type mostly come one after the other: skip the dictionary then
                latest = keys
                followed = self._followed.get(keys.followed)
                ids = None if followed is None else changed.setdefault(keys, [])
                wants_new = followed is not None and changes.wants_new(followed)
            if ids is not None and (entry.stored or wants_new):
                ids.append(entry.packed_id)
        for keys, packed_id in self._set_aside:
            if self._followed.get(keys.followed):
                changed.setdefault(keys, []).append(packed_id)
                self._active[keys.data] = keys  # `all_or_nothing` may have taken it out
        for keys, packed_ids in changed.items():
            for value in changes.write(packed_ids) if packed_ids else ():
                # From the count of jobs' orders: unique also where a transaction has several blocks, each with a unit.
                yield keys.changes + STAMP_CODE, self.new_seq().order, value

    def _write_last(self, entry: Entry, values: list[tuple[bytes, bytes, bytes]]) -> None:
        """Tell followers how a job that has left ended; a removed job has no such row, and loses an earlier one."""
        key = entry.keys.last + entry.packed_id
        record = self._left.get(entry)
        if record is None:
            self.transaction.clear(key)
        else:
            values.append((key, *record.around_stamp()))

    async def wake_types(self) -> None:
        """Wake the types with jobs that a monitor must watch over."""
        if self._is_followed:
            # The rows of changes that this transaction writes need a monitor, which removes them if no follower does.
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

    async def set_retention(self, keys: TypeKeys, retention: Retention) -> None:
        """Set the retention of jobs of the type that finish from now on."""
        self.retentions[keys.retention] = retention
        self.transaction.set(keys.retention, retention.encode())
        if retention.lets_leave:
            await self.tell_of_leaving(keys)

    async def tell_of_leaving(self, keys: TypeKeys) -> None:
        """Have waiters for jobs of the type follow it, and tell them of all leaving jobs until they do."""
        if keys.followed not in self._followed:
            self._note_followed(keys, await self.transaction.get(keys.followed))
        followed = self._followed[keys.followed]
        if followed is None or changes.is_in_doubt(followed):
            self._note_followed(keys, changes.doubt(self.transaction, keys, self.sources))
        self._active[keys.data] = keys

    async def retention(self, keys: TypeKeys) -> Retention:
        """Return the retention of the type's finished jobs."""
        retention = self.retentions.get(keys.retention)
        if retention is None:
            # A snapshot read, so that a change of retention is no conflict for every finish: it may take effect later.
            packed = await self.transaction.snapshot.get(keys.retention)
            retention = self.retentions[keys.retention] = FOR_EVER if packed is None else Retention.decode(packed)
        return retention
