"""Processes that run handlers or are daemons: a row for each, rewritten at each heartbeat, and requests to them.

| key                         | value                            | as long as                        |
|-----------------------------|----------------------------------|-----------------------------------|
| (PROCESSES, id)             | JSON, see below                  | the process is there              |
| (PROCESS_REQUESTS, id)      | JSON: action, who, at            | a request was made to it          |

A process writes its row without reading it, and watches its request. It removes both at its end. If a process ends
otherwise, other processes remove its rows a day after the last heartbeat.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import fdb.tuple

from jobs_service import names
from jobs_service.arguments import EARLIEST, LATEST
from jobs_service.errors import ProcessGone, in_one_line, shown
from jobs_service.layer.key_parts import AFTER
from jobs_service.layer.keyspace import Keyspace
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model.process import HandlerSlots, ProcessAction, ProcessInfo, ProcessRequest, ProcessState
from jobs_service.store.base import Snapshot, Transaction, Watch

PROCESSES: Final = 50
PROCESS_REQUESTS: Final = 51

ID_BYTES: Final = 6
"""Of a process's id, which is written in hexadecimal."""
KEPT_FOR: Final = 86_400.0
"""Seconds after the last heartbeat for which a process that ended without notice is shown."""
MOST_ENDED: Final = 100
"""Most such processes that are kept: one that fails at each start leaves no more."""
MISSED: Final = 4
"""Heartbeats that must be missed before a process counts as silent."""
_DIGITS: Final = frozenset("0123456789abcdef")
_MOST_HANDLERS: Final = 100
_MOST_BYTES: Final = 16_384
"""Of a row, for the names of its handlers."""
_PAGE: Final = 100
"""Rows read in one transaction: there may be very many, and the loop's other work goes on between."""
_LONGEST_WHO: Final = 100


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """The row of a process.

    Attributes:
        info: the visible part; its state is as the process itself reports it.
        period: seconds between two heartbeats.
        instance: of the store, by which other processes detect its death; empty if they cannot.
    """

    info: ProcessInfo
    period: float
    instance: bytes

    def encode(self) -> bytes:
        """Return the row's value."""
        info = self.info
        return json.dumps(
            {
                "host": info.host,
                "pid": info.pid,
                "worker": info.worker,
                "version": info.version,
                "role": info.role,
                "state": info.state.value,
                "started": info.started,
                "heard": info.heard,
                "period": self.period,
                "instance": self.instance.hex(),
                "slots": info.slots,
                "taken": info.taken,
                "handlers": [[names.shown(each.type), each.slots, each.taken] for each in info.handlers],
                "unnamed": info.unnamed,
            },
            separators=(",", ":"),
        ).encode()

    def as_of(self, now: float, dead: Collection[bytes]) -> ProcessInfo:
        """Return the process with its present state, as far as it is known.

        Args:
            now: seconds since the epoch.
            dead: instances of the store whose processes have ended, according to the system.
        """
        if self.instance and self.instance in dead:
            return replace(self.info, state=ProcessState.DEAD)
        if not self.instance and now - self.info.heard > (MISSED + 1) * self.period:
            return replace(self.info, state=ProcessState.SILENT)
        return self.info

    def has_ended(self, now: float, dead: Collection[bytes]) -> bool:
        """Return whether the process has ended without notice, as far as it is known; see `as_of`."""
        return self.as_of(now, dead).state in (ProcessState.DEAD, ProcessState.SILENT)


def some_of(handlers: Iterable[HandlerSlots]) -> tuple[tuple[HandlerSlots, ...], int]:
    """Return the first handlers by name, as many as a row has room for, and the number of further ones."""
    ordered = sorted(((names.shown(each.type), each) for each in handlers), key=lambda pair: pair[0])
    named: list[HandlerSlots] = []
    room = _MOST_BYTES
    for name, each in ordered[:_MOST_HANDLERS]:
        room -= len(json.dumps(name))
        if room < 0:
            break
        named.append(each)
    return tuple(named), len(ordered) - len(named)


# Written by the process itself


def write(unit: UnitOfWork, row: ProcessRow) -> None:
    """Write a process's heartbeat."""
    key = _key(unit.keyspace, PROCESSES, row.info.id)
    unit.transaction.use_reserve()
    # A heartbeat that is under way when the process ends comes to nothing once the row is removed.
    unit.transaction.add_read_conflict_key(key)
    unit.transaction.set(key, row.encode())


def remove(unit: UnitOfWork, id: str) -> None:
    """Remove a process, and the request to it."""
    for family in (PROCESSES, PROCESS_REQUESTS):
        unit.transaction.clear(_key(unit.keyspace, family, id))


async def watch_request(transaction: Transaction, keyspace: Keyspace, id: str) -> tuple[ProcessRequest | None, Watch]:
    """Return the last request to a process, and a watch on it."""
    key = _key(keyspace, PROCESS_REQUESTS, id)
    watch = transaction.watch(key)
    return _request(await transaction.get(key)), watch


# For others


async def page(transaction: Snapshot, keyspace: Keyspace, after: bytes | None) -> tuple[list[ProcessRow], bytes | None]:
    """Return the rows of some processes by their ids, with the requests to them; unreadable rows are left out.

    Args:
        after: the end of the page before; None to begin.

    Returns:
        The rows, and the end of the page; None if there are no others.
    """
    head, asked_head = _head(keyspace, PROCESSES), _head(keyspace, PROCESS_REQUESTS)
    begin = head if after is None else after + b"\x00"
    rows = await transaction.get_range(begin, head + AFTER, limit=_PAGE)
    ids = [key[len(head) :] for key, _ in rows]
    asked = await transaction.get_many([asked_head + id for id in ids])
    found = [
        row
        for id, (_, value), request in zip(ids, rows, asked, strict=True)
        if (row := _row(id, value, _request(request))) is not None
    ]
    return found, rows[-1][0] if len(rows) == _PAGE else None


async def one(transaction: Snapshot, keyspace: Keyspace, id: str) -> ProcessRow | None:
    """Return the row of a process, with the request to it; None if it is missing or unreadable."""
    key, asked = (_key(keyspace, family, id) for family in (PROCESSES, PROCESS_REQUESTS))
    value, request = await transaction.get_many([key, asked])
    return None if value is None else _row(key[len(_head(keyspace, PROCESSES)) :], value, _request(request))


def checked_id(id: Any) -> str:
    """Return the id of a process, checked.

    Raises:
        ProcessGone: no process can have it.
    """
    if not isinstance(id, str) or len(id) != 2 * ID_BYTES or not set(id) <= _DIGITS:
        raise ProcessGone(f"there is no process {shown(id)}")
    return id


async def ask(unit: UnitOfWork, id: str, request: ProcessRequest) -> None:
    """Make a request to a process: it sees it at once, or at its next look.

    Raises:
        ProcessGone: the process has ended, or was asked to stop before and this is another request.
    """
    unit.transaction.use_reserve()
    # Read so that a process that ends now, and removes its rows, leaves no request behind.
    if await unit.transaction.get(_key(unit.keyspace, PROCESSES, id)) is None:
        raise ProcessGone(f"process {id} has ended just now")
    key = _key(unit.keyspace, PROCESS_REQUESTS, id)
    before = _request(await unit.transaction.get(key))
    if before is not None and before.action is ProcessAction.STOP:
        if request.action is ProcessAction.STOP:
            return
        raise ProcessGone(f"process {id} was asked to stop before, and ends")
    value = {"action": request.action.value, "who": in_one_line(request.who, _LONGEST_WHO), "at": request.at}
    unit.transaction.set(key, json.dumps(value).encode())


def to_remove(rows: Iterable[ProcessRow], now: float, dead: Collection[bytes]) -> list[str]:
    """Return processes that ended without notice: a day after their last heartbeat, or beyond MOST_ENDED."""
    ended = [row.info for row in rows if row.has_ended(now, dead)]
    ended.sort(key=lambda each: each.heard, reverse=True)
    return [each.id for position, each in enumerate(ended) if position >= MOST_ENDED or now - each.heard > KEPT_FOR]


async def remove_ended(unit: UnitOfWork, ids: Iterable[str], dead: Collection[bytes]) -> None:
    """Remove processes that have ended; a process with a new heartbeat meanwhile stays."""
    for id in ids:
        row = await one(unit.transaction, unit.keyspace, id)
        if row is not None and row.has_ended(unit.now, dead):
            remove(unit, id)


def _head(keyspace: Keyspace, family: int) -> bytes:
    packed: bytes = fdb.tuple.pack((family,))
    return keyspace.prefix + packed


def _key(keyspace: Keyspace, family: int, id: str) -> bytes:
    packed: bytes = fdb.tuple.pack((family, id))
    return keyspace.prefix + packed


def _row(packed: bytes, value: bytes, request: ProcessRequest | None) -> ProcessRow | None:
    try:
        [id] = fdb.tuple.unpack(packed)
        found: dict[str, Any] = json.loads(value)
        info = ProcessInfo(
            _text(id),
            _text(found["host"]),
            _number(found["pid"]),
            _text(found["worker"]),
            _text(found["version"]),
            _text(found["role"]),
            _time(found["started"]),
            _time(found["heard"]),
            ProcessState(found["state"]),
            _number(found["slots"]),
            _number(found["taken"]),
            tuple(
                HandlerSlots(names.parsed(type), _number(slots), _number(taken))
                for type, slots, taken in found["handlers"]
            ),
            _number(found["unnamed"]),
            request,
        )
        return ProcessRow(info, float(found["period"]), bytes.fromhex(found["instance"]))
    except Exception:  # a value written by other programs: it is no process
        return None


def _request(value: bytes | None) -> ProcessRequest | None:
    if value is None:
        return None
    try:
        found = json.loads(value)
        return ProcessRequest(ProcessAction(found["action"]), _text(found["who"]), _time(found["at"]))
    except Exception:  # a value written by other programs: it is no request
        return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    value.encode()  # raises ValueError for half a character, which no page can show
    return value


def _number(value: Any) -> int:
    if value.__class__ is not int or value < 0:
        raise ValueError("no number")
    return value


def _time(value: Any) -> float:
    seconds = float(value)
    if math.isnan(seconds) or not EARLIEST <= seconds <= LATEST:
        raise ValueError("no time")
    return seconds
