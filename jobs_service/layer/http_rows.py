"""Rows of the HTTP interface beside the jobs: tokens, logins, and the jobs added by repeatable requests.

| key                         | value                            | as long as                        |
|-----------------------------|----------------------------------|-----------------------------------|
| (TOKENS)                    | counter                          | bumped when a token changes       |
| (TOKENS, name)              | JSON: role, hash, created        | the token holds                   |
| (REQUESTS, type, key)       | (fingerprint, id, time)          | a day after the request           |
| (REQUESTS_BY_TIME, time, type, key) | nothing                  | the same                          |
| (SESSIONS, time, hash)      | JSON: token, hash                | a login, until that time          |

The families' numbers are far behind those of jobs, so that both can be extended.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import fdb.tuple

from jobs_service.arguments import LATEST, IfExists
from jobs_service.layer import creation
from jobs_service.layer.creation import Spec
from jobs_service.layer.entry import Entry, JobSnapshot
from jobs_service.layer.key_parts import AFTER, pack_seconds, unpacked
from jobs_service.layer.keyspace import Keyspace, TypeKeys
from jobs_service.layer.unit_of_work import Place, UnitOfWork
from jobs_service.model import JobId
from jobs_service.store.base import Snapshot, Transaction, Watch

TOKENS: Final = 40
REQUESTS: Final = 41
REQUESTS_BY_TIME: Final = 42
SESSIONS: Final = 43

KEPT_FOR: Final = 86_400.0
"""Seconds for which the job of a request is remembered."""

_ONE: Final = (1).to_bytes(8, "little")
_MOST_TOKENS: Final = 10_000
_REMOVED_AT_ONCE: Final = 3
"""Expired rows that each new one removes: more than one, so that they come to an end."""


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


class Request(NamedTuple):
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


def _head(keyspace: Keyspace, family: int) -> bytes:
    packed: bytes = fdb.tuple.pack((family,))
    return keyspace.prefix + packed


# Tokens


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
    key = head + fdb.tuple.pack((row.name,))
    if await transaction.get(key) is not None:
        return False
    value = {"role": row.role, "hash": row.hash, "created": row.created}
    transaction.set(key, json.dumps(value).encode())
    transaction.add(head, _ONE)
    return True


async def remove_token(transaction: Transaction, keyspace: Keyspace, name: str) -> bool:
    """Remove a token; return False if there is none of that name."""
    head = _head(keyspace, TOKENS)
    key = head + fdb.tuple.pack((name,))
    if await transaction.get(key) is None:
        return False
    transaction.clear(key)
    transaction.add(head, _ONE)
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


async def once(
    unit: UnitOfWork, place: Place, request: Request, operation: Callable[..., Awaitable[Entry]], *arguments: Any
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
    unit: UnitOfWork, request: Request, places: Sequence[Place], specs: Sequence[Spec], if_exists: IfExists
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


async def _before(unit: UnitOfWork, keys: TypeKeys, request: Request) -> Repeated | None:
    """Return the result of a repeated request; None for a new one."""
    packed_key = _request_key(keys, request)
    found = await unit.transaction.get(_head(unit.keyspace, REQUESTS) + packed_key)
    if found is None:
        return None
    match unpacked(found):
        case [_, _, float(expires)] if expires <= unit.now:
            # The key is as any other from now on; the row is written anew, and goes by its new time alone.
            unit.transaction.clear(_head(unit.keyspace, REQUESTS_BY_TIME) + pack_seconds(expires) + packed_key)
            return None
        case [request.fingerprint, str(id) | bytes(id), _]:
            return Repeated(id)
    return Repeated(None)  # nor does a row that is damaged say that it was this request


def _note(unit: UnitOfWork, place: Place, request: Request) -> None:
    """Record that a request has added a job."""
    packed_key = _request_key(place[0], request)
    expires = unit.now + KEPT_FOR
    row = fdb.tuple.pack((request.fingerprint, place[1], expires))
    unit.transaction.set(_head(unit.keyspace, REQUESTS) + packed_key, row)
    unit.transaction.set(_head(unit.keyspace, REQUESTS_BY_TIME) + pack_seconds(expires) + packed_key, b"")


def _request_key(keys: TypeKeys, request: Request) -> bytes:
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
