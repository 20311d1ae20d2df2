"""The target of a copy: all writes of a copy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias, TypeVar

import fdb.tuple

from jobs_service import run_data
from jobs_service.copying.note import HAD_JOBS, WAS_PAUSED, Note, Phase, TypeClaim, claim_key, note_key, set_claim
from jobs_service.copying.results import CopyRefused
from jobs_service.copying.rows import Stream
from jobs_service.copying.source import Found, TypeSettings
from jobs_service.errors import JobTooLarge, shown
from jobs_service.layer.batch_bounds import Batch, Pace
from jobs_service.layer.key_parts import AFTER, type_in, unpack_id
from jobs_service.layer.keyspace import COPYING, DATA, PERIODIC, Keyspace, TypeKeys
from jobs_service.layer.listing import read_rows
from jobs_service.layer.record import Record
from jobs_service.layer.record_format import READY
from jobs_service.layer.record_limits import refuse_too_large
from jobs_service.layer.strays import remove_damaged
from jobs_service.layer.unit_of_work import UnitOfWork, run
from jobs_service.model import JobState, Outcome
from jobs_service.model.type_state import Retention
from jobs_service.run_values import HistoryKind
from jobs_service.sources import Sources
from jobs_service.store.base import OFFSET_BYTES, Snapshot, Store, Transaction

T = TypeVar("T")

_ONE: Final = (1).to_bytes(8, "little")


class Target:
    """The store that a copy writes; detects other writers and other copies.

    Args:
        store: an open store.
        prefix: the prefix of the jobs' keys in it.
        sources: wall-clock time.
        batch: bounds of one transaction.
        force: whether other programs may use it.
    """

    def __init__(self, store: Store, prefix: bytes, sources: Sources, batch: Batch, force: bool) -> None:
        self.store = store
        self.name = store.address
        self.keyspace = Keyspace(prefix, store.limits.key)
        self._sources = sources
        self.batch = batch
        self._force = force

    def stream(self, section: int) -> Stream:
        """Return all rows of a section."""
        begin = self.keyspace.sections[section]
        return Stream(self.store, begin, begin + AFTER, Pace(self.batch))

    async def note(self) -> Note | None:
        """Return the note of an unfinished copy, None if there is none."""
        raw = await self.store.read(lambda tr: tr.get(note_key(self.keyspace)))
        return None if raw is None else Note.decode(raw)

    async def is_empty(self) -> bool:
        """Return whether the store has no jobs."""
        return await self.store.read(self._has_no_jobs)

    async def begin(self, note: Note) -> None:
        """Write the note of a new copy.

        Raises:
            CopyRefused: the store has jobs, or another copy has begun.
        """

        async def write(transaction: Transaction) -> None:
            if await transaction.get(note_key(self.keyspace)) is not None:
                raise self._taken_over()
            if not self._force and not await self._has_no_jobs(transaction):
                raise not_empty(self.name)
            transaction.set(note_key(self.keyspace), note.encode())

        await self.store.transact(write)

    async def forget(self, note: Note) -> None:
        """Remove the note of a copy without jobs in the target."""

        async def nothing(_: UnitOfWork) -> tuple[None, None]:
            return None, None

        await self._step(note, nothing)

    def require_room(self, found: Found) -> None:
        """Check that a job's record and keys fit into the store, in every state.

        Raises:
            JobTooLarge: they do not.
        """
        keys = self.keyspace.of_packed(found.type)
        record = found.record.with_next(found.record.next)
        record.fit(self.store.limits.value - OFFSET_BYTES)
        refuse_too_large(self.store.limits, keys, found.id, found.packed_id, record, f"the limit of {self.name}")

    def require_room_for_type(self, type: bytes) -> None:
        """Check that the keys of a packed type fit into the store.

        Raises:
            JobTooLarge: they do not.
        """
        keys = self.keyspace.of_packed(type)
        if len(keys.retention) > self.store.limits.key:
            raise JobTooLarge(
                f"type {shown(keys.type)} makes a key of {len(keys.retention)} bytes; the limit of {self.name} is "
                f"{self.store.limits.key}"
            ).about(keys.type)

    async def force(self, note: Note) -> Note:
        """Record that the stores may be in use from now on; return the next note."""
        return await self._rewrite(note, replace(note, forced=True))

    async def write(self, expected: Note, following: Note, jobs: Sequence[Found], keep: Keeping) -> Note:
        """Write jobs in order, and the next note in the same transaction.

        Args:
            expected: the current note.
            following: the next note, without these jobs in its counts.
            jobs: jobs of the source.
            keep: returns the retention of a packed type.

        Returns:
            The next note.

        Raises:
            CopyRefused: other programs use these types, or work on this copy.
        """

        async def work(unit: UnitOfWork) -> tuple[Note, Note]:
            for type in dict.fromkeys(job.type for job in jobs):
                await self._claim(unit.transaction, self.keyspace.of_packed(type))
            places = [(self.keyspace.of_packed(job.type), job.id, job.packed_id) for job in jobs]
            await unit.prefetch(places)
            copied = skipped = 0
            for place, job in zip(places, jobs, strict=True):
                entry = await unit.load(place)
                if entry.record is None:
                    unit.take_over(entry, moved(unit, job.record, keep(job.type)))
                    copied += 1
                elif not self._force:
                    raise self._in_use(place[0])
                elif following.phase is not Phase.REST or not _copied_before_rest(job.record):
                    skipped += 1
            reached = replace(following, jobs=following.jobs + copied + skipped, skipped=following.skipped + skipped)
            return reached, reached

        return await self._step(expected, work)

    async def claims(self) -> dict[bytes, TypeClaim]:
        """Return the claims of the copy by packed type."""
        start = len(self.keyspace.sections[COPYING])
        rows = self.stream(COPYING)
        claims: dict[bytes, TypeClaim] = {}
        while (row := await rows.next()) is not None:
            if type_in(packed := row[0][start:]) is not None:  # neither the note nor a foreign row has one
                claims[packed] = TypeClaim.decode(row[1])
        return claims

    async def open_types(self, note: Note, settings: Mapping[bytes, TypeSettings]) -> None:
        """Set the settings of all types, release the types for use, then remove the note.

        Args:
            note: the current one.
            settings: settings of the source's types, by packed type.

        Raises:
            CopyRefused: other programs use these types, or work on this copy.
        """
        done = bytes.fromhex(note.after) if note.phase is Phase.SETTINGS else b""
        left = [type for type in sorted(settings.keys() | (await self.claims()).keys()) if type > done]
        pace = Pace(self.batch)
        following: Note | None = note
        while following is not None:
            following, left = await pace.fitting(partial(self._open_some, following, left, settings))

    async def undo(self, note: Note, progress: Callable[[int], object]) -> None:
        """Remove the jobs of an unfinished copy, then its note.

        Args:
            note: the current one.
            progress: called with the number of jobs removed so far.

        Raises:
            CopyRefused: some of these jobs are not the copy's, or other programs changed them.
        """
        claims = await self.claims()
        for type, claim in claims.items():
            await self._require_removable(self.keyspace.of_packed(type), claim)
        if note.phase is not Phase.REMOVING:
            note = await self._rewrite(note, replace(note, phase=Phase.REMOVING, after=""))
        pace = Pace(self.batch)
        removed = 0
        for type in claims:
            keys = self.keyspace.of_packed(type)
            more = True
            while more:
                count, more = await pace.fitting(partial(self._remove, note, keys))
                removed += count
                progress(removed)
        await self.forget(note)

    async def _rewrite(self, note: Note, following: Note) -> Note:
        async def nothing(_: UnitOfWork) -> tuple[Note, Note]:
            return following, following

        return await self._step(note, nothing)

    async def _step(self, expected: Note, function: Callable[[UnitOfWork], Awaitable[tuple[Note | None, T]]]) -> T:
        """Run a function on a unit of work in a transaction, and return its result.

        Args:
            expected: the note that the store must have.
            function: returns the next note, None to remove it, and its result.
        """
        key = note_key(self.keyspace)

        async def work(unit: UnitOfWork) -> T:
            if await unit.transaction.get(key) != expected.encode():
                raise self._taken_over()
            following, result = await function(unit)
            if following is None:
                unit.transaction.clear(key)
            else:
                unit.transaction.set(key, following.encode())
            return result

        return await self.store.transact(lambda tr: run(tr, self.keyspace, self._sources, work))

    async def _claim(self, transaction: Transaction, keys: TypeKeys) -> None:
        """Claim a type before its jobs are written; the first time, pause it."""
        flags = await self._flags(transaction, keys)
        if flags is None:
            flags = 0
            if await transaction.get_range(keys.data, keys.data + AFTER, limit=1):
                if not self._force:
                    raise self._in_use(keys)
                flags |= HAD_JOBS
            if await transaction.get(keys.paused) is not None:
                flags |= WAS_PAUSED
            transaction.set(keys.paused, b"")
            transaction.add(keys.watch_pending, _ONE)
        set_claim(transaction, self.keyspace, keys, flags)

    async def _flags(self, transaction: Transaction, keys: TypeKeys) -> int | None:
        """Return the flags of the type's claim, None without a claim.

        Raises:
            CopyRefused: other programs have changed jobs of the type since it was claimed.
        """
        raw = await transaction.get(claim_key(self.keyspace, keys))
        if raw is None:
            return None
        claim = TypeClaim.decode(raw)
        # With force this key is not read: on a busy type the read would conflict again and again.
        if not self._force and await transaction.get(keys.watch_activity) != claim.stamp:
            raise self._in_use(keys)
        return claim.flags

    async def _open_some(
        self, note: Note, types: list[bytes], settings: Mapping[bytes, TypeSettings], size: int
    ) -> tuple[Note | None, list[bytes]]:
        """Set the settings of the first of these types, and release them for use.

        Returns:
            The next note (None after the last type), and the remaining types.
        """
        first, left = types[:size], types[size:]
        following = replace(note, phase=Phase.SETTINGS, after=first[-1].hex()) if left else None

        async def work(unit: UnitOfWork) -> tuple[Note | None, Note | None]:
            for type in first:
                await self._open(unit, self.keyspace.of_packed(type), settings.get(type, TypeSettings()))
            return following, following

        return await self._step(note, work), left

    async def _open(self, unit: UnitOfWork, keys: TypeKeys, settings: TypeSettings) -> None:
        """Set the settings of a type, and release it for use."""
        transaction = unit.transaction
        flags = await self._flags(transaction, keys)
        if settings.keep().lets_leave:
            await unit.tell_of_leaving(keys)
        for key, value in (
            (keys.retention, settings.retention),
            (keys.timeout, settings.timeout),
            (keys.declared, settings.declared),
            (keys.redaction, settings.redaction),
        ):
            if value is not None:
                transaction.set(key, value)
        if settings.periodic is not None:
            key = self.keyspace.sections[PERIODIC] + keys.packed
            transaction.set(key, later(settings.periodic, await transaction.get(key)))
        if settings.paused:
            transaction.set(keys.paused, b"")
        elif flags is not None and not flags & WAS_PAUSED:
            transaction.clear(keys.paused)
        if flags is not None:
            transaction.clear(claim_key(self.keyspace, keys))
            # Wakes the accepts that wait for jobs of the type.
            transaction.add(keys.watch_pending, _ONE)

    async def _require_removable(self, keys: TypeKeys, claim: TypeClaim) -> None:
        if claim.flags & HAD_JOBS:
            raise CopyRefused(
                f"{self.name} had jobs of type {shown(keys.type)} before jobs were copied to it with --force: "
                "which ones are the copy's cannot be told; remove them yourself, or go on without --start-over"
            ).about(keys.type)
        if not self._force and await self.store.read(lambda tr: tr.get(keys.watch_activity)) != claim.stamp:
            raise CopyRefused(
                f"jobs of type {shown(keys.type)} in {self.name} were changed by others since they were copied; "
                "--force removes them all the same"
            ).about(keys.type)

    async def _remove(self, note: Note, keys: TypeKeys, size: int) -> tuple[int, bool]:
        """Remove the first jobs of a type, the last with its claim; return their number, and whether more are left."""

        async def work(unit: UnitOfWork) -> tuple[Note, tuple[int, bool]]:
            transaction = unit.transaction
            flags = await self._flags(transaction, keys) or 0
            rows, last = await read_rows(transaction, keys.data, keys.data + AFTER, size, self.batch.bytes)
            for entry in await unit.load_many(keys, [key[len(keys.data) :] for key, _ in rows]):
                if keys.data + entry.packed_id in unit.damaged:
                    await remove_damaged(unit, (keys, unpack_id(entry.packed_id), entry.packed_id))
                else:
                    unit.remove(entry)
            if not last:
                set_claim(transaction, self.keyspace, keys, flags)
            else:
                transaction.clear(claim_key(self.keyspace, keys))
                if not flags & WAS_PAUSED:
                    transaction.clear(keys.paused)
            return note, (len(rows), not last)

        return await self._step(note, work)

    async def _has_no_jobs(self, transaction: Snapshot) -> bool:
        section = self.keyspace.sections[DATA]
        return not await transaction.get_range(section, section + AFTER, limit=1)

    def _in_use(self, keys: TypeKeys) -> CopyRefused:
        return CopyRefused(
            f"{self.name} is being worked on (jobs of type {shown(keys.type)} that this copy has not written): end the "
            "programs that use it and copy again with --start-over, or go on with --force"
        ).about(keys.type)

    def _taken_over(self) -> CopyRefused:
        return CopyRefused(f"another process copies jobs to {self.name}: it goes on, this one has ended")


Keeping: TypeAlias = Callable[[bytes], Retention]
"""Returns the retention of a packed type."""


def moved(unit: UnitOfWork, record: Record, retention: Retention) -> Record:
    """Return the record of a source's job for this store, complete, at the end of its queue.

    A running job becomes pending, like a released job; a running job that was to be canceled becomes finished.
    """
    seq = unit.new_seq()
    if record.state is JobState.PENDING:
        return record.pending(record.place, seq, record.priority, record.run_at)
    if record.outcome is not None:
        return record.finished(seq, record.outcome)
    if record.cancel:
        ended = record.with_event(HistoryKind.CANCELED, unit.now).finished(seq, Outcome.CANCELED)
        keep = retention.seconds(Outcome.CANCELED)
        if keep is not None:
            ended.run_data = run_data.expiring(ended.run_data, unit.now + keep)
        return ended
    stopped = record.with_event(HistoryKind.STOPPED, unit.now, "copied while it ran", attempts=-1)
    return stopped.pending(unit.place_for(record.run_at), seq, record.priority, record.run_at)


def later(tick: bytes, other: bytes | None) -> bytes:
    """Return the later of two packed last ticks, so that no tick comes twice."""
    if other is None or fdb.tuple.unpack(tick)[0] >= fdb.tuple.unpack(other)[0]:
        return tick
    return other


def not_empty(name: str) -> CopyRefused:
    """Return the error for a target that has jobs."""
    why = "has jobs already, and not just those that are to be copied: name a store without jobs; with --force"
    return CopyRefused(f"{name} {why} the jobs that are there stay, and the others are added")


def _copied_before_rest(record: Record) -> bool:
    """Return whether an earlier phase copied the job, provided that the job has not changed since."""
    return record.state is JobState.RUNNING or record.place == READY
