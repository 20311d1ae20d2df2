"""One request of a browser: who asks, how they want to see times and colours, and where links lead."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.requests import Request

from jobs_service.http import gate
from jobs_service.http.dashboard.access import environment_of, role_of
from jobs_service.http.refusals import Refusal
from jobs_service.names import parsed, shown
from jobs_service.service.outages import LastHour, last_hour

if TYPE_CHECKING:
    from jobs_service import JobsService, JobType
    from jobs_service.http.dashboard.access import Environment, Role
    from jobs_service.http.dashboard.shared_counts import SharedCounts
    from jobs_service.model.counts import TypeCounts

THEMES: Final = ("auto", "light", "dark")
ZONES: Final = ("utc", "local")
THEME_COOKIE: Final = "jobs_service_theme"
ZONE_COOKIE: Final = "jobs_service_times"


class BadAddress(ValueError):
    """The address of a page names no type or job; the message says why."""


@dataclass(slots=True)
class Visit:
    """A request for a page.

    Attributes:
        request: the browser's.
        state: what the handlers of requests share.
        shared: the counts that all pages share; None to read them for this one.
        now: seconds since the epoch.
        role: of who asks.
    """

    request: Request
    state: Any
    shared: SharedCounts | None = None
    now: float = field(default_factory=time.time)
    role: Role = field(init=False)

    def __post_init__(self) -> None:
        self.role = role_of(self.request, self.state)

    @property
    def service(self) -> JobsService:
        """What the pages are about."""
        service: JobsService = self.state.service
        return service

    async def counts(self) -> dict[JobType, TypeCounts]:
        """Return the counts of all types."""
        return await (self.service.counts() if self.shared is None else self.shared.get())

    async def last_hour(self) -> LastHour:
        """Return what went wrong with jobs of all types in the last hour."""
        if self.shared is None:
            return await last_hour(self.service, await self.service.counts())
        return await self.shared.last_hour()

    @property
    def environment(self) -> Environment:
        """Name and colour of what the server is part of."""
        return environment_of(self.state)

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the address, the last of each name."""
        return self.request.query_params

    def may(self, role: str) -> bool:
        """Return whether who asks has a role, and the server is not read-only."""
        return self.role.may(role)

    def may_run(self, type: JobType) -> bool:
        """Return whether who asks may add jobs of a type, and have them run again."""
        with contextlib.suppress(Refusal):
            gate.check_may_run(self.state, self.request.state.who, type)
            return self.may("write")
        return False

    def url(self, page: str, /, **query: Any) -> str:
        """Return the address of a page.

        Args:
            page: such as "/job".
            query: parameters; None and "" are left out, a list is repeated. `type_` and `id_` are names of a type and
                a job, in whatever kind they have. Half characters, which no address has, become "?": nothing is found.
        """
        pairs: list[tuple[str, str]] = []
        for name, value in query.items():
            if name in ("type_", "id_"):
                pairs.append((name[:-1], shown(value)))
            elif isinstance(value, list | tuple):
                pairs += [(name, str(each)) for each in value]
            elif value is not None and value != "":
                pairs.append((name, str(value)))
        root = str(self.request.scope.get("root_path", "")).rstrip("/")
        return f"{root}{page}" + (f"?{urlencode(pairs, errors='replace')}" if pairs else "")

    def same(self, **changes: Any) -> str:
        """Return the address of this page with other parameters; None takes one away."""
        query: dict[str, Any] = {}
        for name, value in self.request.query_params.multi_items():
            query.setdefault(name, []).append(value)
        query.update(changes)
        return self.url(self.path, **query)

    @property
    def path(self) -> str:
        """The page's own path, below wherever the application is mounted."""
        path = str(self.request.scope["path"])
        root = str(self.request.scope.get("root_path", "")).rstrip("/")
        return path[len(root) :] if root and path.startswith(f"{root}/") else path

    @property
    def here(self) -> str:
        """The address of this page, as it was asked for."""
        return self.same()

    def type(self, given: Mapping[str, Any] | None = None) -> Any:
        """Return the type that the address, or a form, names.

        Raises:
            BadAddress: there is none in it.
        """
        return _name("type", self.query if given is None else given)

    def id(self, given: Mapping[str, Any] | None = None) -> Any:
        """Return the id that the address, or a form, names; raises as `type`."""
        return _name("id", self.query if given is None else given)

    @property
    def theme(self) -> str:
        """Of THEMES."""
        return _one_of(THEMES, self.request.cookies.get(THEME_COOKIE))

    @property
    def zone(self) -> str:
        """Of ZONES."""
        return _one_of(ZONES, self.request.cookies.get(ZONE_COOKIE))


def choice(given: str | None, allowed: Iterable[str]) -> str:
    """Return what was given if it is allowed, else the first of what is."""
    return _one_of(tuple(allowed), given)


def _one_of(allowed: tuple[str, ...], given: str | None) -> str:
    return given if given in allowed else allowed[0]


def _name(what: str, given: Mapping[str, Any]) -> Any:
    text = given.get(what)
    if not isinstance(text, str) or not text:
        raise BadAddress(f"the address names no {what}: ?{what}=... is missing")
    try:
        return parsed(text)
    except ValueError as error:
        raise BadAddress(f"{what}: {error}") from None
