"""Schedules in the store, made and changed at runtime, in transactions.

Each has one row, (SCHEDULES, name): its definition, and its last tick. The transaction that adds a tick's job reads the
row and writes the tick into it. So a tick comes once, by the definition that is in the store at that moment, whoever
changes it meanwhile. A change of the times first adds the jobs of the ticks that were due by the old ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import fdb.tuple

from jobs_service import json_data, names
from jobs_service.arguments import EARLIEST, LATEST, check_schedule_name
from jobs_service.errors import (
    InvalidJob,
    JobTooLarge,
    NoTypeTimeout,
    RecordDamaged,
    ScheduleNotFound,
    shown,
)
from jobs_service.layer import awake_types, creation
from jobs_service.layer.keyspace import AFTER, SCHEDULES, Keyspace, place_of
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import UNSET
from jobs_service.model.enqueueing import Enqueueable
from jobs_service.model.type_state import StoredSchedule
from jobs_service.runner.schedule import END, MOST_MADE_UP, Cron, Every, Missed, last_tick
from jobs_service.runner.ticker import AddedTicks, Periodic, elsewhere, tick_id
from jobs_service.sources import MOST_AHEAD
from jobs_service.store.base import ONE, Snapshot, Transaction, Watch

MOST_DATA: Final = 20_000
"""Most bytes of the data of a schedule's jobs."""

_LONGEST_ID_AT: Final = END + 0.5
_PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class StoredPeriodic(Periodic):
    """A schedule in the store; its handler may be in any process.

    Attributes:
        name: of the schedule.
        is_paused: whether its ticks are held up.
        changed: when it was set or paused last, seconds since the epoch.
        last: its last tick; the time at which it was set before the first one.
    """

    name: str = ""
    is_paused: bool = False
    changed: float = 0.0
    last: float = 0.0

    @property
    def definition(self) -> bytes:
        """All of it but the last tick, for comparisons."""
        return dataclasses.replace(self, last=0.0).encode()

    def encode(self) -> bytes:
        """Return the value of its row."""
        times = (
            {"every": self.schedule.seconds}
            if isinstance(self.schedule, Every)
            else {"cron": self.schedule.expression, "timezone": self.schedule.timezone}  # type: ignore[attr-defined]
        )
        found = {
            "type": names.name(self.handler.type),
            "data": self.handler.data(UNSET),
            **times,
            "missed": self.missed.value,
            "overlap": self.overlap,
            "timeout": self.handler.timeout,
            "paused": self.is_paused,
            "changed": self.changed,
            "last": self.last,
        }
        return json_data.encode(found)

    def seen(self, now: float) -> StoredSchedule:
        """Return it as applications see it.

        Args:
            now: seconds since the epoch.
        """
        schedule = self.schedule
        upcoming = schedule.next_after(max(now, self.last))
        return StoredSchedule(
            self.name,
            self.handler.type,
            self.handler.data(UNSET),
            schedule.seconds if isinstance(schedule, Every) else None,
            schedule.expression if isinstance(schedule, Cron) else None,
            str(schedule.timezone) if isinstance(schedule, Cron) else None,
            self.missed.value,
            self.overlap,
            self.is_paused,
            self.changed,
            last_tick(schedule, self.last),
            None if self.is_paused or upcoming > LATEST else upcoming,
        )

    # Ticks, see Periodic

    async def add(self, unit: UnitOfWork, most: int, seen: float | None) -> AddedTicks:
        found = await read(unit.transaction, unit.keyspace, self.name)
        if found is None or found.is_paused or found.definition != self.definition:
            # It was changed: another ticker has the new definition, or gets it at once.
            return AddedTicks([], unit.now if seen is None else seen, unit.now)
        return await super(StoredPeriodic, found).add(unit, most, seen)

    async def noted(self, unit: UnitOfWork) -> float | None:
        return self.last

    def note(self, unit: UnitOfWork, tick: float) -> None:
        _write(unit, dataclasses.replace(self, last=tick))


# Definitions


def defined(
    name: Any, handler: Enqueueable[Any, Any], data: Any, schedule: Every | Cron, missed: Missed, overlap: bool
) -> StoredPeriodic:
    """Return the definition of a schedule, checked as far as is possible without the store.

    Raises:
        InvalidJob: an invalid name.
        JobTooLarge: more data than a schedule keeps.
    """
    size = len(json_data.encode(data))
    if size > MOST_DATA:
        raise JobTooLarge(f"the data take {size} bytes; those of a schedule may take {MOST_DATA}").about(handler.type)
    found = elsewhere(handler.type, handler.timeout, data)
    return StoredPeriodic(found, schedule, missed, overlap, f"{check_schedule_name(name)}@", name)


def times_of(every: Any, cron: Any, timezone: Any) -> Every | Cron:
    """Return the times of a schedule.

    Raises:
        InvalidJob: both or none of `every` and `cron` are given, or one is invalid.
    """
    if (every is None) == (cron is None):
        raise InvalidJob(f"every={shown(every)} and cron={shown(cron)}: give one of them")
    return Every(every) if cron is None else Cron(cron, timezone)


def decoded(name: bytes, value: bytes) -> StoredPeriodic | None:
    """Return the schedule of a row, given its packed name; None for one that cannot be read."""
    try:
        [text] = fdb.tuple.unpack(name)
        found: dict[str, Any] = json_data.decode(value)
        schedule = times_of(found.get("every"), found.get("cron"), found.get("timezone"))
        timeout, changed, last = found["timeout"], float(found["changed"]), float(found["last"])
        if not (EARLIEST <= changed <= LATEST and EARLIEST <= last <= LATEST):
            return None
        handler = elsewhere(names.from_json(found["type"]), None if timeout is None else float(timeout), found["data"])
        missed, overlap, paused = Missed(found["missed"]), bool(found["overlap"]), bool(found["paused"])
        return StoredPeriodic(
            handler, schedule, missed, overlap, f"{check_schedule_name(text)}@", text, paused, changed, last
        )
    except Exception:  # a value written by other programs, or in a damaged store
        return None


# Reading

Decode: TypeAlias = Callable[[bytes, bytes], StoredPeriodic | None]
"""Returns the schedule of a row, given its packed name and its value; see `decoded`."""


async def read(transaction: Snapshot, keyspace: Keyspace, name: str) -> StoredPeriodic | None:
    """Return a schedule; None if it is missing or unreadable."""
    key = _key(keyspace, name)
    value = await transaction.get(key)
    return None if value is None else decoded(key[len(keyspace.sections[SCHEDULES]) :], value)


async def page(
    transaction: Snapshot, keyspace: Keyspace, after: bytes | None, decode: Decode = decoded
) -> tuple[list[StoredPeriodic], bytes | None]:
    """Return some schedules by their names, and the end of the page; None if it is the last. Unreadable ones are left
    out.

    Args:
        transaction, keyspace: where they are.
        after: the end of the page before; None for the first one.
        decode: `decoded`, or a function that knows its results.
    """
    head = keyspace.sections[SCHEDULES]
    rows = await transaction.get_range(head + b"\x00" if after is None else after + b"\x00", head + AFTER, limit=_PAGE)
    found = [decode(key[len(head) :], value) for key, value in rows]
    return [each for each in found if each is not None], rows[-1][0] if len(rows) == _PAGE else None


def watch(transaction: Transaction, keyspace: Keyspace) -> Watch:
    """Return a watch on the changes of schedules, which ticks are not."""
    return transaction.watch(keyspace.sections[SCHEDULES])


# Changing


async def put(unit: UnitOfWork, wanted: StoredPeriodic, *, must_exist: bool) -> StoredPeriodic:
    """Make a schedule, or change it; it stays paused if it is.

    Args:
        unit: the unit of the transaction.
        wanted: its definition.
        must_exist: whether the type of its jobs must exist, as no program here knows how to make it.

    Raises:
        NoTypeTimeout: that type does not exist.
        InvalidJob: its data have a mark in place of a secret.
        JobTooLarge: the store would take none of its jobs.
    """
    keys = unit.keyspace.of(wanted.handler.type)
    spec = creation.spec_of(wanted.handler.type, wanted.name, wanted.handler.data(UNSET), 0, None)
    creation.require_room(unit, place_of(keys, wanted.prefix + tick_id(_LONGEST_ID_AT)), spec)
    if spec.is_marked:
        await creation.refuse_mark(unit, place_of(keys, wanted.name), spec)
    if must_exist:
        await unit.require_type(keys)
    before = await read(unit.transaction, unit.keyspace, wanted.name)
    last = unit.now
    if before is not None and before.schedule == wanted.schedule:
        last = before.last
    elif before is not None and before.last <= unit.now + MOST_AHEAD:
        last = max(last, await _last_of_old(unit, before))
    paused = before is not None and before.is_paused
    found = dataclasses.replace(wanted, is_paused=paused, changed=unit.now, last=last)
    await awake_types.mark_schedules(unit.transaction, unit.keyspace, whether=True)
    _write(unit, found)
    _tell(unit)
    return found


async def _last_of_old(unit: UnitOfWork, before: StoredPeriodic) -> float:
    """Add the jobs of the ticks that are due by a definition that is about to change; return the last tick."""
    if before.is_paused:
        return before.last
    try:
        return (await before.add(unit, MOST_MADE_UP if before.overlap else 1, None)).last
    except (NoTypeTimeout, JobTooLarge, RecordDamaged):  # its type is gone, or its job cannot be added
        return before.last


async def set_paused(unit: UnitOfWork, name: str, *, paused: bool) -> StoredPeriodic:
    """Hold up the ticks of a schedule, or let them come again; those in between are missed ticks.

    Raises:
        ScheduleNotFound: there is no such schedule.
    """
    before = await read(unit.transaction, unit.keyspace, name)
    if before is None:
        raise not_found(name)
    if before.is_paused == paused:
        return before
    found = dataclasses.replace(before, is_paused=paused, changed=unit.now)
    _write(unit, found)
    _tell(unit)
    return found


async def remove(unit: UnitOfWork, name: str) -> None:
    """Remove a schedule, also an unreadable one; the jobs of its ticks stay.

    Raises:
        ScheduleNotFound: there is no such schedule.
    """
    key, head = _key(unit.keyspace, name), unit.keyspace.sections[SCHEDULES]
    if await unit.transaction.get(key) is None:
        raise not_found(name)
    unit.transaction.clear(key)
    _tell(unit)
    left = await unit.transaction.get_range(head + b"\x00", head + AFTER, limit=2)
    if all(each == key for each, _ in left):
        await awake_types.mark_schedules(unit.transaction, unit.keyspace, whether=False)


def not_found(name: str) -> ScheduleNotFound:
    """Return the error for a schedule that does not exist."""
    return ScheduleNotFound(f"there is no schedule {shown(name)}")


def _write(unit: UnitOfWork, found: StoredPeriodic) -> None:
    unit.transaction.set(_key(unit.keyspace, found.name), found.encode())


def _tell(unit: UnitOfWork) -> None:
    unit.transaction.add(unit.keyspace.sections[SCHEDULES], ONE)


def _key(keyspace: Keyspace, name: str) -> bytes:
    packed: bytes = fdb.tuple.pack((name,))
    return keyspace.sections[SCHEDULES] + packed
