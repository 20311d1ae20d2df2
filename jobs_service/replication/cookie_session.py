"""Cookies of `/_session`: requested, renewed in time, and renewed once for all requests that find one expired."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Final, Literal

from jobs_service.replication.errors import RequestFailed, Unauthorized

RENEW_AFTER: Final = 550.0
"""Seconds after which a cookie without Max-Age is renewed."""
SHARE: Final = 0.9
"""The share of Max-Age after which a cookie is renewed."""
_MOST_DIGITS: Final = 12
"""Most digits of a server's Max-Age: `int` refuses thousands of digits, and hundreds fit in no float."""
LEAST_BETWEEN: Final = 5.0
"""Least seconds between two renewals, even if Max-Age is less: a server with useless cookies is not asked in a loop.
A cookie that ends earlier is renewed when it is refused."""


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """The answer to POST /_session."""

    status: int
    set_cookie: Iterable[str] = ()
    www_authenticate: bool = False


Ask = Callable[[bool], Awaitable[SessionAnswer]]
"""Requests a cookie; the argument tells whether to send the credentials by Basic as well."""


class CookieSession:
    """The cookie of one endpoint. `mode` becomes "basic" if the server issues none; errors name `where`."""

    def __init__(self, ask: Ask, where: str = "the server", *, clock: Callable[[], float] = time.monotonic) -> None:
        self.mode: Literal["cookie", "basic"] = "cookie"
        self._ask = ask
        self._where = where
        self._clock = clock
        self._with_basic = False
        self._cookie: str | None = None
        self._has_held = False
        self._taken_at = 0.0
        self._renew_at = 0.0
        self._renewing = asyncio.Lock()

    async def cookie(self) -> str | None:
        """Return the current cookie as `AuthSession=...`, requested if there is none; None: use Basic.

        Raises `Unauthorized` if the server does not accept the credentials.
        """
        if self.mode == "cookie" and (self._cookie is None or self._clock() >= self._renew_at):
            await self._renew(self._cookie)
        return self._cookie if self.mode == "cookie" else None

    async def refused(self, used: str | None, status: int) -> bool:
        """Handle a 401 or 403 answer to a request with this cookie; tell whether another try at once is worth it."""
        if used is None:
            return False
        if used != self._cookie or self.mode == "basic":
            return True
        # A restarted server may know none of the cookies that it issued, and answers 401. A known user without the
        # permission gets 403.
        is_forgotten = status == 401 and self._has_held
        if not is_forgotten and self._clock() - self._taken_at < LEAST_BETWEEN:
            return False
        await self._renew(used)
        return True

    def given(self, set_cookie: Iterable[str], *, held: bool = False) -> None:
        """Take the cookie of an answer: servers send a new one shortly before the old one ends.

        Args:
            set_cookie: the headers of the answer.
            held: whether the server accepted the cookie of the request.
        """
        self._has_held = self._has_held or held
        for text in set_cookie:
            try:
                found = SimpleCookie(text).get("AuthSession")
            except CookieError:
                continue
            if found is not None and found.value:
                cookie, now = f"AuthSession={found.value}", self._clock()
                if cookie != self._cookie:
                    self._cookie, self._taken_at, self._has_held = cookie, now, False
                    self._renew_at = now + _lasts(str(found["max-age"]))

    async def _renew(self, old: str | None) -> None:
        async with self._renewing:
            if self._cookie != old or self.mode == "basic":
                return  # Another request has renewed it meanwhile.
            answer = await self._ask(self._with_basic)
            if answer.status == 401 and answer.www_authenticate and not self._with_basic:
                self._with_basic = True
                answer = await self._ask(True)
            if answer.status in (404, 405):
                self.mode = "basic"
                return
            if answer.status in (401, 403):
                raise Unauthorized(
                    f"{self._where}: the server gives out no session to these credentials", status=answer.status
                )
            if answer.status != 200:
                message = f"{self._where}: the server answered {answer.status} when asked for a session"
                raise RequestFailed(message, status=answer.status, transient=True)
            self.given(answer.set_cookie)
            if self._cookie is None:
                self.mode = "basic"
            elif self._cookie == old:
                self._taken_at = self._clock()
                self._renew_at = self._taken_at + LEAST_BETWEEN


def _lasts(max_age: str) -> float:
    """Return the seconds after which a cookie is renewed; a Max-Age that is no number counts as none."""
    is_number = max_age.isascii() and max_age.isdigit() and len(max_age) <= _MOST_DIGITS
    return max(int(max_age) * SHARE, LEAST_BETWEEN) if is_number else RENEW_AFTER
