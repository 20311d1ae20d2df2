"""Access tokens and their roles: kept in the store as hashes, and cached here until they change.

A token is 32 random bytes, so its plain SHA-256 reveals nothing about it. A login with it gets a cookie of other random
bytes, kept in the store as a hash as well: a copy of the store gives no access. A login ends with its token.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from jobs_service.errors import InvalidJob, JobsError, ServiceClosed, StoreError
from jobs_service.log import EventLog
from jobs_service.service.remote import SessionRow, TokenRow

if TYPE_CHECKING:
    from jobs_service.service import JobsService

log = EventLog("jobs_service.http")

SESSION_TIME: Final = 12 * 3600
"""Seconds for which a login is valid."""

_PREFIX: Final = "jst_"
_OWN_NAME: Final = ""
"""Name of the server's own token; a token of the store cannot have it."""
_LONGEST_NAME: Final = 60
_LONGEST_TOKEN: Final = 200
_LONGEST_TIME: Final = 12
_HOLDOFF: Final = 0.02


class Role(enum.IntEnum):
    """The rights of a caller; each role includes the roles before it."""

    NOBODY = 0
    """Use the addresses that need no role: liveness, the documentation."""
    READ = 1
    """Look at everything."""
    WORK = 2
    """Accept jobs, and end them."""
    WRITE = 3
    """Add, change and remove jobs, make and pause types."""
    ADMIN = 4
    """Take types away; run commands, on servers that allow them."""

    @property
    def label(self) -> str:
        """The role's name in texts."""
        return self.name.lower()


TOKEN_ROLES = {role.label: role for role in Role if role is not Role.NOBODY}


class Session(NamedTuple):
    """A login.

    Attributes:
        expires: seconds since the epoch.
        digest: SHA-256 of the cookie's secret, hexadecimal.
    """

    expires: float
    digest: str


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a caller.

    Attributes:
        name: of the token, or from the host application; empty for the server's own token, or for none.
        role: its role.
        proven: whether a token, or the host application, proves it; only then may an admin run commands.
        session: the login of the request's cookie, None for none.
    """

    name: str
    role: Role
    proven: bool = False
    session: Session | None = None


class Tokens:
    """The tokens of a store, and a token of the server's own, outside the store, that is valid while the server runs.

    Args:
        service: of the store.
        revoked: called with the names of removed and changed tokens.

    Attributes:
        were_there: whether the store has had a token meanwhile: removing the last one does not open the server.
    """

    def __init__(self, service: JobsService, revoked: Callable[[set[str]], object]) -> None:
        self._service = service
        self._revoked = revoked
        self.were_there = False
        self._own: TokenRow | None = None
        self._codes: set[str] = set()
        self._rows: Mapping[str, TokenRow] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()
        self._asked = 0
        self._answered = 0
        self._times_set = 0

    def new_own(self) -> str:
        """Return a new token of the server's own; an earlier one is no longer valid."""
        token = new_token()
        self._own = TokenRow(_OWN_NAME, Role.ADMIN.label, hash_of(token), time.time())
        return token

    def new_code(self) -> str:
        """Return a one-time code for the server's own token."""
        code = secrets.token_urlsafe(32)
        self._codes.add(hash_of(code))
        return code

    def of_code(self, code: str) -> Identity | None:
        """Return the identity of a code, and use the code up."""
        offered = hash_of(code[:_LONGEST_TOKEN])
        if self._own is None or offered not in self._codes:
            return None
        self._codes.remove(offered)
        return _identity(self._own)

    async def known(self) -> Mapping[str, TokenRow]:
        """Return the tokens by name; they are read at their first use, and again after each change.

        Raises:
            JobsError: the service is not open, or the store cannot be read.
        """
        if self._rows is None:
            await self._renew()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        assert self._rows is not None
        return self._rows

    async def of_token(self, token: str) -> Identity | None:
        """Return the identity of a token; the time of the search reveals nothing about other tokens."""
        offered = hash_of(token[:_LONGEST_TOKEN]).encode()
        if self._own is not None and hmac.compare_digest(self._own.hash.encode(), offered):
            return _identity(self._own)
        found = _with_hash(await self.known(), offered)
        if found is None:
            # The token may have been added a moment ago.
            await self._renew()
            found = _with_hash(await self.known(), offered)
        return found

    async def of_session(self, cookie: str) -> Identity | None:
        """Return the identity of a cookie's login."""
        found = _taken_apart(cookie)
        return None if found is None else await self.of_login(found)

    async def of_login(self, login: Session) -> Identity | None:
        """Return the identity of a login, if it is still valid."""
        if login.expires < time.time():
            return None
        session = await self._service.remote.session(*login)
        row = None if session is None else await self._named(session.token)
        return None if session is None or row is None or row.hash != session.hash else _identity(row, login)

    async def session(self, name: str) -> str:
        """Return the cookie of a new login with the token of this name."""
        row = await self._named(name)
        if row is None:
            raise JobsError(f"there is no token {name}")
        expires, secret = int(time.time()) + SESSION_TIME, secrets.token_urlsafe(32)
        await self._service.remote.add_session(SessionRow(hash_of(secret), float(expires), name, row.hash))
        return f"{expires}:{secret}"

    async def _named(self, name: str) -> TokenRow | None:
        return self._own if name == _OWN_NAME else (await self.known()).get(name)

    async def end_session(self, cookie: str) -> Session | None:
        """End the login of a cookie and return it; None for a malformed cookie."""
        found = _taken_apart(cookie)
        if found is not None:
            await self._service.remote.remove_session(*found)
        return found

    async def close(self) -> None:
        """Stop watching the store."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None
        self._rows = None

    async def _renew(self) -> None:
        """Read the tokens, once for all callers that wait for them by then."""
        self._asked += 1
        number = self._asked
        async with self._reading:
            while self._answered < number:
                begun, times = self._asked, self._times_set
                rows = await self._service.remote.tokens()
                if times == self._times_set:  # otherwise these may be older than the known ones
                    self._set(rows)
                    self._answered = begun

    def _set(self, rows: list[TokenRow]) -> None:
        self._times_set += 1
        before, self._rows = self._rows, {row.name: row for row in rows if row.role in TOKEN_ROLES}
        self.were_there = self.were_there or bool(rows)
        if before:
            gone = {name for name, row in before.items() if self._rows.get(name) != row}
            if gone:
                self._revoked(gone)

    async def _watch(self) -> None:
        remote = self._service.remote
        while True:
            try:
                rows, watch = await remote.context.retried(remote.watched_tokens)
            except ServiceClosed:
                return
            except JobsError as error:
                # The next caller begins anew; until then the known tokens may be too old to grant access.
                log.warning("tokens_unreadable", error=str(error))
                self._rows = None
                return
            try:
                self._set(rows)
                with contextlib.suppress(StoreError):
                    await watch.wait()
            finally:
                watch.cancel()
            await asyncio.sleep(_HOLDOFF)


def new_token() -> str:
    """Return a new random token."""
    return _PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    """Return the hash of a token, as the store keeps it."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def check_name(name: str) -> str:
    """Return the name of a token if it is valid.

    Raises:
        InvalidJob: it is not.
    """
    if not 0 < len(name) <= _LONGEST_NAME or not all(
        char.isascii() and (char.isalnum() or char in "-_.@") for char in name
    ):
        raise InvalidJob(f"token {name[:_LONGEST_NAME]!r}: 1 to {_LONGEST_NAME} of A-Z a-z 0-9 - _ . @ are allowed")
    return name


async def add_token(service: JobsService, name: str, role: str) -> str:
    """Add a token and return it: it cannot be read later.

    Raises:
        InvalidJob: an invalid name or role.
        JobsError: a token of that name exists.
    """
    if role not in TOKEN_ROLES:
        raise InvalidJob(f"role {role!r}: allowed are {', '.join(TOKEN_ROLES)}")
    token = new_token()
    await service.remote.add_token(TokenRow(check_name(name), role, hash_of(token), time.time()))
    return token


def _with_hash(rows: Mapping[str, TokenRow], offered: bytes) -> Identity | None:
    found: Identity | None = None
    for row in rows.values():
        if hmac.compare_digest(row.hash.encode(), offered):
            found = _identity(row)
    return found


def _identity(row: TokenRow, session: Session | None = None) -> Identity:
    return Identity(row.name, TOKEN_ROLES[row.role], proven=True, session=session)


def _taken_apart(cookie: str) -> Session | None:
    """Return the login in a cookie, unchecked; None for a malformed cookie."""
    expires, _, secret = cookie[:_LONGEST_TOKEN].partition(":")
    if not (expires.isascii() and expires.isdecimal() and len(expires) < _LONGEST_TIME):
        return None
    return Session(float(expires), hash_of(secret))
