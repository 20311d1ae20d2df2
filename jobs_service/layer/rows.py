"""Rows beside the jobs: the mark of a copy; processes; relayed outboxes; tokens, logins and requests of HTTP.

| key                                 | value                       | as long as                             |
|-------------------------------------|-----------------------------|----------------------------------------|
| (COPYING)                           | random bytes                | a copy into this store is not complete |
| (PROCESSES, id)                     | JSON, see `ProcessRow`      | the process is there                   |
| (PROCESS_REQUESTS, id)              | JSON: action, who, at       | a request was made to it               |
| (OUTBOXES, id)                      | JSON: owner, tokens         | rows of the outbox were moved          |
| (TOKENS)                            | counter                     | bumped when a token changes            |
| (TOKENS, name)                      | JSON: role, hash, created   | the token holds                        |
| (REQUESTS, type, key)               | (fingerprint, id, time)     | a day after the request                |
| (REQUESTS_BY_TIME, time, type, key) | nothing                     | the same                               |
| (SESSIONS, time, hash)              | JSON: token, hash           | a login, until that time               |

A process that runs handlers, or is a daemon, rewrites its row at each heartbeat without reading it, and watches its
request. It removes both at its end. If it ends otherwise, other processes remove its rows a day after the last
heartbeat. The families' numbers are far behind those of jobs, so that both can be extended.

The module has more than 600 lines because all kinds of rows share the checks of what other programs may have written.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import fdb.tuple

from jobs_service import names
from jobs_service.arguments import EARLIEST, LATEST, IfExists
from jobs_service.durations import LONGEST
from jobs_service.errors import ProcessGone, StoreError, in_one_line, shown
from jobs_service.layer import creation
from jobs_service.layer.creation import Spec
from jobs_service.layer.keyspace import AFTER, COPYING, Keyspace, Place, TypeKeys, pack_seconds, unpacked
from jobs_service.layer.record import Entry, JobSnapshot
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import JobId
from jobs_service.model.process import (
    HandlerSlots,
    OutboxInfo,
    ProcessAction,
    ProcessInfo,
    ProcessRequest,
    ProcessState,
)
from jobs_service.store.base import ONE, Snapshot, Store, Transaction, Watch

MARK_BYTES: Final = 8
"""Of the mark's value, which is random: each copy knows its own."""

PROCESSES: Final = 50
PROCESS_REQUESTS: Final = 51
OUTBOXES: Final = 52

ID_BYTES: Final = 6
"""Of a process's id, which is written in hexadecimal."""
KEPT_FOR: Final = 86_400.0
"""Seconds for which a process that ended without notice is shown after its last heartbeat, and a request is known."""
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

TOKENS: Final = 40
REQUESTS: Final = 41
REQUESTS_BY_TIME: Final = 42
SESSIONS: Final = 43

_MOST_TOKENS: Final = 10_000
_REMOVED_AT_ONCE: Final = 3
"""Expired rows that each new one removes: more than one, so that they come to an end."""


# The mark of a copy: until all is there, nobody else may use the store


def mark_key(keyspace: Keyspace) -> bytes:
    """Return the key of the mark."""
    return keyspace.sections[COPYING]


async def refuse_half_copied(store: Store, keyspace: Keyspace) -> None:
    """Refuse a store that has the mark.

    Raises:
        StoreError: the store has it.
    """
    if await store.read(lambda tr: tr.get(mark_key(keyspace))) is not None:
        raise half_copied(store.address)


def half_copied(address: str) -> StoreError:
    """Return the error for a store that has the mark."""
    return StoreError(
        f"store {address} is half a copy: begin it anew with jobs-service copy FROM {address} --anew, or remove it"
    )


# Processes: their rows


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
                "outboxes": [[each.name, each.rows, each.oldest, each.set_aside, each.error] for each in info.outboxes],
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


# Processes: as others see them


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
            tuple(
                OutboxInfo(
                    _text(name), _number(rows), None if oldest is None else _seconds(oldest), _number(aside), _text(why)
                )
                for name, rows, oldest, aside, why in found["outboxes"]
            ),
        )
        return ProcessRow(info, _seconds(found["period"]), bytes.fromhex(found["instance"]))
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


def _seconds(value: Any, least: float = 0.0, most: float = LONGEST) -> float:
    seconds = float(value)
    if not least <= seconds <= most:  # nor is NaN
        raise ValueError("no such time")
    return seconds


def _time(value: Any) -> float:
    return _seconds(value, EARLIEST, LATEST)


# Outboxes: the rows of an application's database that were moved into the store, and may not have been removed there


def outboxes_begin(keyspace: Keyspace) -> bytes:
    """Return the beginning of the keys of all outboxes."""
    return _head(keyspace, OUTBOXES)


async def relayed(unit: UnitOfWork, outbox: str) -> tuple[str, list[str]]:
    """Return the owner of an outbox, and the tokens of the rows that were moved last; empty if there were none."""
    value = await unit.transaction.get(_key(unit.keyspace, OUTBOXES, outbox))
    if value is None:
        return "", []
    found = json.loads(value)
    return found["owner"], found["tokens"]


def note_relayed(unit: UnitOfWork, outbox: str, owner: str, tokens: Sequence[str]) -> None:
    """Note the owner of an outbox, and the tokens of the rows that this transaction moves."""
    value = json.dumps({"owner": owner, "tokens": tokens}, separators=(",", ":"))
    unit.transaction.set(_key(unit.keyspace, OUTBOXES, outbox), value.encode())


# Tokens


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One token.

    Attributes:
        name: the token's name.
        role: its permissions; "" for a row that cannot be read.
        hash: SHA-256 of the token, hexadecimal.
        created: seconds since the epoch.
    """

    name: str
    role: str
    hash: str
    created: float


async def read_tokens(transaction: Snapshot, keyspace: Keyspace) -> list[TokenRow]:
    """Return all tokens; a token that cannot be read has no role: it gives no access, but is listed."""
    head = _head(keyspace, TOKENS)
    rows = await transaction.get_range(head + b"\x00", head + AFTER, limit=_MOST_TOKENS)
    return [_token_row(key[len(head) :], value) for key, value in rows]


async def watch_tokens(transaction: Transaction, keyspace: Keyspace) -> tuple[list[TokenRow], Watch]:
    """Return all tokens, and a watch on their changes."""
    watch = transaction.watch(_head(keyspace, TOKENS))
    return await read_tokens(transaction, keyspace), watch


async def add_token(transaction: Transaction, keyspace: Keyspace, row: TokenRow) -> bool:
    """Add a token; return False if the name is taken."""
    head = _head(keyspace, TOKENS)
    key = _key(keyspace, TOKENS, row.name)
    if await transaction.get(key) is not None:
        return False
    value = {"role": row.role, "hash": row.hash, "created": row.created}
    transaction.set(key, json.dumps(value).encode())
    transaction.add(head, ONE)
    return True


async def remove_token(transaction: Transaction, keyspace: Keyspace, name: str) -> bool:
    """Remove a token; return False if there is none of that name."""
    head = _head(keyspace, TOKENS)
    key = _key(keyspace, TOKENS, name)
    if await transaction.get(key) is None:
        return False
    transaction.clear(key)
    transaction.add(head, ONE)
    return True


def _token_row(packed: bytes, value: bytes) -> TokenRow:
    name = packed.hex()
    try:
        name = str(fdb.tuple.unpack(packed)[0])
        found = json.loads(value)
        created = float(found["created"])
        if 0 <= created <= LATEST:
            return TokenRow(name, str(found["role"]), str(found["hash"]), created)
    except Exception:  # a value written by other programs
        pass
    return TokenRow(name, "", "", 0.0)


# Logins


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A login with a token.

    Attributes:
        digest: SHA-256 of the cookie's value, hexadecimal: a reader of the store cannot make the cookie from it.
        expires: seconds since the epoch.
        token, hash: name and hash of the token; the session ends with it.
    """

    digest: str
    expires: float
    token: str
    hash: str


async def add_session(unit: UnitOfWork, row: SessionRow) -> None:
    """Add a login, and remove some expired ones."""
    transaction, head = unit.transaction, _head(unit.keyspace, SESSIONS)
    rows = await transaction.snapshot.get_range(head + b"\x00", head + pack_seconds(unit.now), limit=_REMOVED_AT_ONCE)
    for key, _ in rows:
        transaction.clear(key)
    value = {"token": row.token, "hash": row.hash}
    transaction.set(_session_key(unit.keyspace, row.expires, row.digest), json.dumps(value).encode())


async def session(transaction: Snapshot, keyspace: Keyspace, expires: float, digest: str) -> SessionRow | None:
    """Return a login, None if it does not exist."""
    value = await transaction.get(_session_key(keyspace, expires, digest))
    try:
        found = None if value is None else json.loads(value)
        return None if found is None else SessionRow(digest, expires, str(found["token"]), str(found["hash"]))
    except Exception:  # a value written by other programs: it gives no access
        return None


def remove_session(unit: UnitOfWork, expires: float, digest: str) -> None:
    """End a login; it need not exist."""
    unit.transaction.clear(_session_key(unit.keyspace, expires, digest))


def _session_key(keyspace: Keyspace, expires: float, digest: str) -> bytes:
    packed: bytes = fdb.tuple.pack((digest,))
    return _head(keyspace, SESSIONS) + pack_seconds(expires) + packed


# Requests that may be repeated


class RepeatableRequest(NamedTuple):
    """A request that may be repeated.

    Attributes:
        key: identifies the request within the job's type.
        fingerprint: of its content.
    """

    key: str
    fingerprint: bytes


class Repeated(NamedTuple):
    """The result of a repeated request.

    Attributes:
        id: of the job added by the first request, the first of several; None if the contents of the two requests
            differ.
    """

    id: JobId | None


async def once(
    unit: UnitOfWork,
    place: Place,
    request: RepeatableRequest,
    operation: Callable[..., Awaitable[Entry]],
    *arguments: Any,
) -> JobSnapshot | Repeated:
    """Do an operation on a job, unless the same request has done so before.

    Args:
        unit, place: as for every operation.
        request: is written in the same transaction.
        operation: takes unit, place and arguments; raises before it changes anything, or not at all.
    """
    if (before := await _before(unit, place[0], request)) is not None:
        return before
    await _remove_expired(unit)
    entry = await operation(unit, place, *arguments)
    _note(unit, place, request)
    return entry.seen()


async def add_many_once(
    unit: UnitOfWork, request: RepeatableRequest, places: Sequence[Place], specs: Sequence[Spec], if_exists: IfExists
) -> list[Entry] | Repeated:
    """Add several jobs of one type in this transaction, unless the same request has done so before.

    Args:
        unit: of an unshared transaction: an exception undoes it.
        request: is written in the same transaction, with the id of the first job.
        places, specs, if_exists: as for `creation.add_many`; one job at least.
    """
    keys = places[0][0]
    if (before := await _before(unit, keys, request)) is not None:
        return before
    await _remove_expired(unit)
    entries = await creation.add_many(unit, keys, places, specs, if_exists)
    _note(unit, places[0], request)
    return entries


async def _before(unit: UnitOfWork, keys: TypeKeys, request: RepeatableRequest) -> Repeated | None:
    """Return the result of a repeated request; None for a new one."""
    packed_key = _request_key(keys, request)
    found = await unit.transaction.get(_head(unit.keyspace, REQUESTS) + packed_key)
    if found is None:
        return None
    match unpacked(found):
        case [_, _, float(expires)] if expires <= unit.now:
            # The request counts as new, and `_note` replaces the row; its old time must not remove the new row.
            unit.transaction.clear(_head(unit.keyspace, REQUESTS_BY_TIME) + pack_seconds(expires) + packed_key)
            return None
        case [request.fingerprint, str(id) | bytes(id), _]:
            return Repeated(id)
    return Repeated(None)  # another request with this key, or a damaged row, which does not tell


def _note(unit: UnitOfWork, place: Place, request: RepeatableRequest) -> None:
    """Record that a request has added a job."""
    packed_key = _request_key(place[0], request)
    expires = unit.now + KEPT_FOR
    row = fdb.tuple.pack((request.fingerprint, place[1], expires))
    unit.transaction.set(_head(unit.keyspace, REQUESTS) + packed_key, row)
    unit.transaction.set(_head(unit.keyspace, REQUESTS_BY_TIME) + pack_seconds(expires) + packed_key, b"")


def _request_key(keys: TypeKeys, request: RepeatableRequest) -> bytes:
    packed: bytes = keys.packed + fdb.tuple.pack((request.key,))
    return packed


async def _remove_expired(unit: UnitOfWork) -> None:
    """Remove some expired rows."""
    by_time, requests = _head(unit.keyspace, REQUESTS_BY_TIME), _head(unit.keyspace, REQUESTS)
    end = by_time + pack_seconds(unit.now)
    rows = await unit.transaction.snapshot.get_range(by_time + b"\x00", end, limit=_REMOVED_AT_ONCE)
    behind_time = len(end)
    for key, _ in rows:
        unit.transaction.clear(key)
        unit.transaction.clear(requests + key[behind_time:])
