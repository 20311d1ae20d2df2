"""The jobs that one transaction has read: each is read once, many of them together."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from typing import Final

from jobs_service.errors import RecordDamaged
from jobs_service.layer.batch_bounds import Room, most_rewritten_bytes, rewritten_bytes
from jobs_service.layer.entry import Entry
from jobs_service.layer.key_parts import is_id, unpack_id
from jobs_service.layer.keyspace import Keyspace, Place, TypeKeys
from jobs_service.store.base import Limits, Transaction

_PAGE_GROWTH: Final = 4


class LoadedJobs:
    """The jobs that a transaction has read, each read once.

    Attributes:
        transaction: the store's transaction.
        keyspace: of the keys.
        entries: the jobs by their DATA keys.
        damaged: jobs whose records were read and cannot be decoded: they are not among the entries.
        is_full: whether so much was read or rewritten that further operations should go into another transaction.
    """

    # UnitOfWork.__init__ sets them all, for this class and the one between: a unit is made for each transaction, and a
    # call of super().__init__ costs more than all of these assignments.
    __slots__ = (
        "_followed",
        "_is_followed",
        "_limits",
        "_most_written",
        "_read",
        "damaged",
        "entries",
        "is_full",
        "keyspace",
        "transaction",
    )

    transaction: Transaction
    keyspace: Keyspace
    entries: dict[bytes, Entry]
    damaged: dict[bytes, RecordDamaged]
    is_full: bool
    _limits: Limits
    _most_written: int
    _read: int
    _followed: dict[bytes, bytes | None]
    _is_followed: bool

    async def load(self, place: Place) -> Entry:
        """Return the job's entry, read from the store the first time.

        Raises:
            RecordDamaged: its record cannot be read.
        """
        data_key = place[0].data + place[2]
        entry = self.entries.get(data_key)
        if entry is None:
            if data_key not in self.damaged:
                entry = await self._read_one(data_key, place)
            if entry is None:
                # A copy: the same job may be asked for again, and raising an error adds to its traceback.
                raise copy.copy(self.damaged[data_key])
        return entry

    async def _read_one(self, data_key: bytes, place: Place) -> Entry | None:
        """Return a job's entry as stored, None if its record cannot be read."""
        keys, id, packed_id = place
        if keys.followed in self._followed:
            raw = await self.transaction.get(data_key)
        else:
            raw, followed = await self.transaction.get_many((data_key, keys.followed))
            self._note_followed(keys, followed)
        if raw is not None:
            self._count_read(len(raw))
        try:
            entry = self.entries[data_key] = Entry(keys, id, packed_id, raw)
        except RecordDamaged as error:
            self.damaged[data_key] = error.of(keys.type, id)
            return None
        return entry

    def _count_read(self, size: int) -> None:
        self._read += size
        if self._read > self._limits.transaction:
            self.is_full = True

    def _note_followed(self, keys: TypeKeys, followed: bytes | None) -> None:
        self._followed[keys.followed] = followed
        if followed is not None:
            self._is_followed = True

    def condemn(self, entry: Entry, error: RecordDamaged) -> None:
        """Note that a part of a job's record, unchanged in this transaction, turned out to be unreadable."""
        data_key = entry.keys.data + entry.packed_id
        del self.entries[data_key]
        self.damaged[data_key] = error.of(entry.keys.type, entry.id)

    async def prefetch(self, jobs: Sequence[Place]) -> None:
        """Read jobs that are about to be touched; the reads go out together. Raises nothing for unreadable records."""
        entries = self.entries
        if len(jobs) == 1:
            [place] = jobs
            data_key = place[0].data + place[2]
            if data_key not in entries and data_key not in self.damaged:
                await self._read_one(data_key, place)
            return
        known: Collection[bytes] = {*entries, *self.damaged} if self.damaged else entries
        missing: dict[bytes, Place] = {}
        of_types: dict[bytes, TypeKeys] = {}
        latest: TypeKeys | None = None
        for place in jobs:
            keys = place[0]
            data_key = keys.data + place[2]
            if data_key not in known:
                missing[data_key] = place
                if keys is not latest:  # jobs of one type mostly come one after the other: skip the dictionary then
                    latest = of_types[keys.followed] = keys
        if missing:
            types = [keys for followed, keys in of_types.items() if followed not in self._followed]
            raws = await self.transaction.get_many([*missing, *(keys.followed for keys in types)])
            for keys, followed in zip(types, raws[len(missing) :], strict=True):
                self._note_followed(keys, followed)
            for (data_key, (keys, id, packed_id)), raw in zip(missing.items(), raws, strict=False):
                try:
                    entries[data_key] = Entry(keys, id, packed_id, raw)
                except RecordDamaged as error:
                    self.damaged[data_key] = error.of(keys.type, id)
            self._count_read(sum(map(len, filter(None, raws[: len(missing)]))))

    def loaded(self, place: Place) -> Entry | None:
        """Return the job's entry if it was read already."""
        return self.entries.get(place[0].data + place[2])

    async def load_many(self, keys: TypeKeys, packed_ids: Sequence[bytes]) -> list[Entry]:
        """Return the jobs' entries in their order; the reads go out together.

        For invalid ids and unreadable records, the entry has no record, and is not kept.
        """
        try:
            jobs = [(keys, unpack_id(packed_id), packed_id) for packed_id in packed_ids]
        except (IndexError, ValueError):
            jobs = [(keys, unpack_id(packed_id), packed_id) for packed_id in packed_ids if is_id(packed_id)]
        await self.prefetch(jobs)
        entries = self.entries
        data = keys.data
        try:
            return [entries[data + packed_id] for packed_id in packed_ids]
        except KeyError:
            return [entries.get(data + packed_id) or Entry(keys, b"", packed_id, None) for packed_id in packed_ids]

    def fitting(self, entries: list[Entry]) -> list[Entry]:
        """Return as many entries from the front, at least one, as fit beside a transaction's other contents."""
        room = Room(self._most_written)
        for position, entry in enumerate(entries):
            record = entry.record
            if record is not None:
                size = rewritten_bytes(record, len(entry.keys.ready) + len(entry.packed_id))
                if not room.takes(size) and position:
                    return entries[:position]
        return entries

    async def load_fitting(self, keys: TypeKeys, packed_ids: Sequence[bytes]) -> list[Entry]:
        """Return the entries of as many jobs from the front, at least one, as `fitting` accepts.

        Records are read in growing pages, the first within a transaction's bounds: most of a thousand large ones are
        not even read.
        """
        entries: list[Entry] = []
        page = max(1, self._limits.transaction // self._limits.value)
        most, size = self._most_written, 0
        while len(entries) < len(packed_ids):
            ids = packed_ids[len(entries) : len(entries) + page]
            known, read = len(self.entries), self._read
            entries += await self.load_many(keys, ids)
            # Usually all of them were read just now, and are far from too much: then there is no need to measure each.
            if len(self.entries) - known == len(ids):
                size += most_rewritten_bytes(len(ids), self._read - read, sum(map(len, ids)), len(keys.ready))
            else:
                most = -1
            if size > most:
                fit = self.fitting(entries)
                if len(fit) < len(entries):
                    return fit
            page *= _PAGE_GROWTH
        return entries
