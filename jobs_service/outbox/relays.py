"""The relay: moves the rows of an outbox into the store, each exactly once and in their order.

A batch is added to the store, and then removed from the database: two commits, and the relay may die between them. So
the transaction that adds the jobs also writes the rows' tokens into the store, in one key that each batch overwrites.
The next relay reads them, and first removes those rows. No time limit is in that: it holds even if the jobs have ended
and were removed meanwhile.

Of several relays one works: it has a lock of the database. Should two take themselves for that one, because a
connection was lost and its relay has not noticed, the key decides: it names its owner, each batch reads it, and each
new owner writes it before it reads a row. A former owner's transaction conflicts with that, or finds another name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from jobs_service import names
from jobs_service.errors import (
    InvalidJob,
    JobNotFound,
    JobsError,
    JobTooLarge,
    NoTypeTimeout,
    RecordDamaged,
    ServiceClosed,
    StoreError,
    SupervisorFailed,
    TransactionTooLarge,
)
from jobs_service.layer import rows as store_rows
from jobs_service.layer.batch_bounds import Batch, Pace
from jobs_service.layer.transaction import JobTransaction
from jobs_service.log import EventLog
from jobs_service.model import JobState
from jobs_service.model.process import OutboxInfo
from jobs_service.outbox.databases import POLL, DatabaseAway, OncePlace, Session, database_at
from jobs_service.outbox.rows import Row, RowHandlers, WantedRow, wanted_row
from jobs_service.service import JobsService
from jobs_service.sources import Sources

log = EventLog("jobs_service")

BATCH: Final = Batch(jobs=500, bytes=3_000_000)
"""Most rows that are read and moved at once, and characters of their data."""

UNKNOWN_TYPE: Final = "unknown type"
"""Beginning of the reason of rows that are tried again when their type exists."""

KEEP_ONCE: Final = 7 * 86_400.0
"""Seconds for which the note of an effect is kept at least, after its job has ended."""

_FIRST_ROWS: Final = 32
"""Rows that are read first, when nobody knows yet how long they are."""

_OWNER_BYTES: Final = 8
_COUNT_EVERY: Final = 5.0
_RETRY_TYPES_EVERY: Final = 30.0
_FORGET_EVERY: Final = 3600.0
_FORGET_PAGE: Final = 200
FIRST_NOTE: Final[OncePlace] = ("", "", "")
"""The place before those of all notes."""
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 10.0


class _TakenOver(DatabaseAway):
    """Another relay has become the owner."""


async def relay(jobs: JobsService, url: str) -> None:
    """Move the rows of an outbox into the store of a service, until the caller is canceled.

    While the database or the store is away, it tries again, with growing pauses. Any number of relays may run, in any
    processes; one of them works.

    Args:
        jobs: an open service.
        url: of the database: `postgresql://...`, as libpq takes it, or `sqlite:PATH`.

    Raises:
        InvalidSettings: an invalid address, or its driver is not installed.
        ServiceClosed, SupervisorFailed: the service is not open, or has failed.
    """
    await Relay(jobs, url).run()


class Relay:
    """A relay of one outbox; see `relay`.

    Args:
        jobs: an open service.
        url: of the database.
    """

    def __init__(self, jobs: JobsService, url: str) -> None:
        self._jobs = jobs
        self._database = database_at(url)
        self._info = OutboxInfo(self._database.name)
        self._pause = _FIRST_PAUSE
        self._moving = Pace(BATCH)
        self._due: dict[str, float] = {}
        # Up to where the notes of effects were looked through; None while nobody does.
        self._looked_through: OncePlace | None = None

    async def run(self) -> None:
        """Move rows until the caller is canceled."""
        try:
            while True:
                try:
                    async with self._database.session() as session:
                        await self._work(session)
                except (ServiceClosed, SupervisorFailed):
                    raise
                except (DatabaseAway, StoreError) as error:
                    self._away(error)
                except Exception as error:  # the service and its jobs go on
                    log.error("outbox_failed", outbox=self._database.name, pause=self._pause, exc_info=error)
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        finally:
            self._jobs._presence.outboxes.pop(self._database.name, None)

    def _away(self, error: JobsError) -> None:
        text = str(error)
        if text != self._info.error:
            log.warning("outbox_away", outbox=self._database.name, error=text)
        self._tell(replace(self._info, error=text))

    def _tell(self, info: OutboxInfo) -> None:
        self._info = info
        self._jobs._presence.outbox_changed(info)

    async def _work(self, session: Session) -> None:
        outbox = await session.outbox()
        while not await session.lock(outbox):
            self._jobs._presence.outboxes.pop(self._database.name, None)  # the owner of the lock tells of it
            await asyncio.sleep(POLL)
        owner = Sources().token(_OWNER_BYTES).hex()
        await session.remove_moved(await self._claimed(outbox, owner))
        log.info("outbox_relayed", outbox=self._database.name)
        self._tell(OutboxInfo(self._database.name))
        self._due.pop("lag", None)
        reading = Pace(BATCH, first=_FIRST_ROWS)
        while True:
            rows = await reading.fitting(session.rows, measure=_measured)
            await self._move(session, outbox, owner, rows)
            self._pause = _FIRST_PAUSE
            await self._look_after(session)
            if not rows and self._looked_through is None:
                await session.wait()

    async def _claimed(self, outbox: str, owner: str) -> list[str]:
        """Make this relay the owner; return the tokens of rows that were moved, and may not have been removed."""

        async def claim(tx: JobTransaction) -> list[str]:
            _, tokens = await store_rows.relayed(tx._unit, outbox)
            store_rows.note_relayed(tx._unit, outbox, owner, tokens)
            return tokens

        return await self._jobs.transact(claim)

    async def _move(self, session: Session, outbox: str, owner: str, rows: Sequence[Row]) -> None:
        refused: list[tuple[int, str]] = []
        wanted: list[WantedRow] = []
        for row in rows:
            try:
                wanted.append(wanted_row(row))
            except JobsError as error:
                refused.append((row.seq, str(error)))
        await self._set_aside(session, refused)

        async def move(part: Sequence[WantedRow]) -> None:
            try:
                refused = await self._add(outbox, owner, part)
            except TransactionTooLarge as error:
                if len(part) > 1:
                    raise
                refused = [(part[0].seq, str(error))]
            aside = {seq for seq, _ in refused}
            await session.remove([row.seq for row in part if row.seq not in aside])
            await self._set_aside(session, refused)

        await self._moving.through(wanted, lambda row: row.size, move)

    async def _add(self, outbox: str, owner: str, rows: Sequence[WantedRow]) -> list[tuple[int, str]]:
        """Add the jobs of rows, and note their tokens; return the numbers of those that cannot be, with the reasons."""

        async def add(tx: JobTransaction) -> list[tuple[int, str]]:
            present, _ = await store_rows.relayed(tx._unit, outbox)
            if present != owner:
                raise _TakenOver("another relay works on this outbox")
            refused = []
            handlers = RowHandlers(tx._handlers())
            for row in rows:
                try:
                    await tx.enqueue(handlers[row.type], row.args, **row.options)
                except NoTypeTimeout as error:
                    refused.append((row.seq, f"{UNKNOWN_TYPE}: {error}"))
                except RecordDamaged as error:
                    refused.append((row.seq, str(error)))
                except StoreError:
                    raise
                except JobsError as error:
                    refused.append((row.seq, str(error)))
            aside = {seq for seq, _ in refused}
            store_rows.note_relayed(tx._unit, outbox, owner, [row.token for row in rows if row.seq not in aside])
            return refused

        return await self._jobs.transact(add)

    async def _set_aside(self, session: Session, refused: Sequence[tuple[int, str]]) -> None:
        for seq, reason in refused:
            await session.set_aside(seq, reason)
            log.warning("outbox_row_set_aside", outbox=self._database.name, seq=seq, reason=reason)

    # Now and then

    def _is_due(self, what: str, every: float) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._due.get(what, now):
            return False
        self._due[what] = now + every
        return True

    async def _look_after(self, session: Session) -> None:
        if self._is_due("types", _RETRY_TYPES_EVERY):
            await self._retry_types(session)
        if self._is_due("notes", _FORGET_EVERY):
            self._looked_through = FIRST_NOTE
        if (after := self._looked_through) is not None:
            # A page, and then rows again, which do not wait until all the notes of an hour are gone.
            self._looked_through = None
            self._looked_through = await forget_effects(self._jobs, session, after)
        if self._is_due("lag", _COUNT_EVERY):
            lag = await session.lag()
            self._tell(OutboxInfo(self._database.name, lag.rows, lag.oldest, lag.set_aside))

    async def _retry_types(self, session: Session) -> None:
        aside = await session.types_set_aside(UNKNOWN_TYPE)
        if aside:
            known = {*map(names.shown, await self._jobs.types())}
            if ours := [type for type in aside if type in known]:
                await session.retry_types(ours, UNKNOWN_TYPE)


def _measured(rows: Sequence[Row]) -> tuple[int, int]:
    return len(rows), sum(row.length or 0 for row in rows if row.data is not None)


async def forget_effects(
    jobs: JobsService, session: Session, after: OncePlace, keep: float = KEEP_ONCE
) -> OncePlace | None:
    """Remove the notes of a page of effects, of those whose jobs have ended or are gone.

    Args:
        jobs: an open service.
        session: with the database.
        after: the end of the page before; FIRST_NOTE for the first one.
        keep: seconds for which a note is kept at least, after the last run that has asked for it: a run that was taken
            for lost may still come to its effect.

    Returns:
        The end of the page; None after the last one.
    """
    found = await session.noted_before(keep, after, _FORGET_PAGE)
    ended = await asyncio.gather(*(_has_ended(jobs, place) for place in found))
    await session.forget([place for place, whether in zip(found, ended, strict=True) if whether], keep)
    return found[-1] if len(found) == _FORGET_PAGE else None


async def _has_ended(jobs: JobsService, place: OncePlace) -> bool:
    type, id, _ = place
    try:
        return (await jobs.get(names.parsed(type), names.parsed(id))).state is JobState.FINISHED
    except JobNotFound:
        return True
    except (ValueError, InvalidJob, JobTooLarge, RecordDamaged):  # another program's note; an unreadable job
        return False
