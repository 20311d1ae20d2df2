"""Tokens: who may do what, kept in the store as hashes, and known here as long as nobody changes them.

A token is 32 random bytes, so its plain SHA-256 tells nothing about it. Somebody who logs in with it gets a cookie of
other random bytes, of which the store keeps the hash as well: with a copy of the store nobody gets in. A login ends
with its token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from jobs_service.errors import InvalidJob, JobsError, ServiceClosed, StoreError
from jobs_service.http.roles import TOKEN_ROLES, Identity, Role, Session
from jobs_service.layer.http_rows import SessionRow, TokenRow
from jobs_service.log import EventLog

if TYPE_CHECKING:
    from jobs_service.service import JobsService

log = EventLog("jobs_service.http")

SESSION_TIME: Final = 12 * 3600
"""Seconds that a login holds."""

_PREFIX: Final = "jst_"
_OWN_NAME: Final = ""
"""No token of the store can be called that."""
_LONGEST_NAME: Final = 60
_LONGEST_TOKEN: Final = 200
_LONGEST_TIME: Final = 12
_HOLDOFF: Final = 0.02


def new_token() -> str:
    """Return a token that nobody has."""
    return _PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    """Return what the store keeps of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def check_name(name: str) -> str:
    """Return the name of a token if it can be one.

    Raises:
        InvalidJob: it cannot.
    """
    if not 0 < len(name) <= _LONGEST_NAME or not all(
        char.isascii() and (char.isalnum() or char in "-_.@") for char in name
    ):
        raise InvalidJob(f"token {name[:_LONGEST_NAME]!r}: 1 to {_LONGEST_NAME} of A-Z a-z 0-9 - _ . @ are allowed")
    return name


async def add_token(service: JobsService, name: str, role: str) -> str:
    """Add a token and return it: nobody can read it later.

    Raises:
        InvalidJob: a name or a role that cannot be.
        JobsError: there is one of that name.
    """
    if role not in TOKEN_ROLES:
        raise InvalidJob(f"role {role!r}: allowed are {', '.join(TOKEN_ROLES)}")
    token = new_token()
    await service._remote.add_token(TokenRow(check_name(name), role, hash_of(token), time.time()))
    return token


class Tokens:
    """The tokens of a store.

    Args:
        service: of the store.
        revoked: called with the names of tokens that hold no longer, or not as they did.

    Attributes:
        were_there: whether there was a token since this was made: who takes the last one away opens nothing by that.

    Whoever has started the server may have a token of their own, in no store, which holds as long as the server runs.
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
        """Return a token of its own for whoever has started the server; one that was made before holds no longer."""
        token = new_token()
        self._own = TokenRow(_OWN_NAME, Role.ADMIN.label, hash_of(token), time.time())
        return token

    def new_code(self) -> str:
        """Return a text that stands for the server's own token once."""
        code = secrets.token_urlsafe(32)
        self._codes.add(hash_of(code))
        return code

    def of_code(self, code: str) -> Identity | None:
        """Return who has a code, which is used up by that."""
        offered = hash_of(code[:_LONGEST_TOKEN])
        if self._own is None or offered not in self._codes:
            return None
        self._codes.remove(offered)
        return _identity(self._own)

    async def known(self) -> Mapping[str, TokenRow]:
        """Return the tokens by name; they are read when they are wanted first, and again whenever they change.

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
        """Return who has a token; the time that this takes tells nothing about those there are."""
        offered = hash_of(token[:_LONGEST_TOKEN]).encode()
        if self._own is not None and hmac.compare_digest(self._own.hash.encode(), offered):
            return _identity(self._own)
        found = _with_hash(await self.known(), offered)
        if found is None:
            # It may have been added a moment ago.
            await self._renew()
            found = _with_hash(await self.known(), offered)
        return found

    async def of_session(self, cookie: str) -> Identity | None:
        """Return who has logged in with a cookie."""
        found = _taken_apart(cookie)
        return None if found is None else await self.of_login(found)

    async def of_login(self, login: Session) -> Identity | None:
        """Return who has logged in so, if that holds still."""
        if login.expires < time.time():
            return None
        session = await self._service._remote.session(*login)
        row = None if session is None else await self._named(session.token)
        return None if session is None or row is None or row.hash != session.hash else _identity(row, login)

    async def session(self, name: str) -> str:
        """Return the cookie for somebody who has shown a token."""
        row = await self._named(name)
        if row is None:
            raise JobsError(f"there is no token {name}")
        expires, secret = int(time.time()) + SESSION_TIME, secrets.token_urlsafe(32)
        await self._service._remote.add_session(SessionRow(hash_of(secret), float(expires), name, row.hash))
        return f"{expires}:{secret}"

    async def _named(self, name: str) -> TokenRow | None:
        return self._own if name == _OWN_NAME else (await self.known()).get(name)

    async def end_session(self, cookie: str) -> Session | None:
        """Have a cookie be of no use any more, and return its login; None for what is no cookie of ours."""
        found = _taken_apart(cookie)
        if found is not None:
            await self._service._remote.remove_session(*found)
        return found

    async def close(self) -> None:
        """Look at the store no more."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
            self._watching = None
        self._rows = None

    async def _renew(self) -> None:
        """Read the tokens: once for all who have asked by then, however many they are."""
        self._asked += 1
        number = self._asked
        async with self._reading:
            while self._answered < number:
                begun, times = self._asked, self._times_set
                rows = await self._service._remote.tokens()
                if times == self._times_set:  # otherwise these may be older than what is known by now
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
        remote = self._service._remote
        while True:
            try:
                rows, watch = await remote.context.retried(remote.watched_tokens)
            except ServiceClosed:
                return
            except JobsError as error:
                # Whoever asks next begins anew; until then what was read may be too old to let somebody in.
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


def _with_hash(rows: Mapping[str, TokenRow], offered: bytes) -> Identity | None:
    found: Identity | None = None
    for row in rows.values():
        if hmac.compare_digest(row.hash.encode(), offered):
            found = _identity(row)
    return found


def _identity(row: TokenRow, session: Session | None = None) -> Identity:
    return Identity(row.name, TOKEN_ROLES[row.role], proven=True, session=session)


def _taken_apart(cookie: str) -> Session | None:
    """Return the login that a cookie would be of; None for what is no cookie of ours."""
    expires, _, secret = cookie[:_LONGEST_TOKEN].partition(":")
    if not (expires.isascii() and expires.isdecimal() and len(expires) < _LONGEST_TIME):
        return None
    return Session(float(expires), hash_of(secret))
