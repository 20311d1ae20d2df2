"""One request of a browser: its user's rights, the preferred theme and time zone, and the addresses of links."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from starlette.requests import Request

from jobs_service.http import gate
from jobs_service.http.endpoint import Changes
from jobs_service.http.problems import Refusal
from jobs_service.http.state import colour_of
from jobs_service.names import parsed, shown
from jobs_service.runner.commands import COMMAND_TYPE

if TYPE_CHECKING:
    from jobs_service import JobsService, JobType
    from jobs_service.dashboard.reads import Reads

THEMES: Final = ("auto", "light", "dark")
ZONES: Final = ("utc", "local")
THEME_COOKIE: Final = "jobs_service_theme"
ZONE_COOKIE: Final = "jobs_service_times"


# The request


@dataclass(slots=True)
class Visit:
    """A request for a page.

    Attributes:
        request: the browser's request.
        state: the shared state of all request handlers.
        shared: the reads that all pages share; None for a page that reads nothing.
        now: seconds since the epoch.
        role: the user's rights.
    """

    request: Request
    state: Any
    shared: Reads | None = None
    now: float = field(default_factory=time.time)
    role: UserRights = field(init=False)

    def __post_init__(self) -> None:
        self.role = role_of(self.request, self.state)

    @property
    def service(self) -> JobsService:
        """The service that the pages show."""
        service: JobsService = self.state.service
        return service

    @property
    def changes(self) -> Changes:
        """The changes that the user may ask for."""
        return Changes(self.state, self.request.state.who, self.request.state.client)

    @property
    def reads(self) -> Reads:
        """The reads that all pages share."""
        assert self.shared is not None
        return self.shared

    @property
    def environment(self) -> Environment:
        """The name and the colour of the server's environment."""
        options = self.state.options
        return Environment(options.environment, colour_of(options.colour))

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the address; of several parameters with one name, the last."""
        return self.request.query_params

    def may(self, role: str) -> bool:
        """Return whether the user has a role, and the server allows it: only "read" on a read-only one."""
        return self.role.may(role)

    def may_run(self, type: JobType) -> bool:
        """Return whether the user may add and resubmit jobs of a type."""
        with contextlib.suppress(Refusal):
            gate.check_may_run(self.state, self.request.state.who, type)
            return self.may("write")
        return False

    def url(self, page: str, /, **query: Any) -> str:
        """Return the address of a page.

        Args:
            page: the path of the page, such as "/job".
            query: the parameters; None and "" are left out, a list is repeated. `type_` and `id_` take the values of a
                type and of a job's id. A lone surrogate becomes "?", which finds nothing.
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
        """Return the address of this page with changed parameters; None removes a parameter."""
        query: dict[str, Any] = {}
        for name, value in self.request.query_params.multi_items():
            query.setdefault(name, []).append(value)
        query.update(changes)
        return self.url(self.path, **query)

    @property
    def path(self) -> str:
        """The page's path below the application's mount point."""
        path = str(self.request.scope["path"])
        root = str(self.request.scope.get("root_path", "")).rstrip("/")
        return path[len(root) :] if root and path.startswith(f"{root}/") else path

    @property
    def section(self) -> str:
        """The path of the menu's page to which this page belongs."""
        return "/" if self.path.startswith(("/type", "/job", "/bulk", "/past")) else self.path

    @property
    def here(self) -> str:
        """The address of this page as requested."""
        return self.same()

    def type(self, given: Mapping[str, Any] | None = None) -> Any:
        """Return the type in the address or in a form.

        Raises:
            BadAddress: it has no type, or none that can be parsed.
        """
        return _name("type", self.query if given is None else given)

    def id(self, given: Mapping[str, Any] | None = None) -> Any:
        """Return the job id in the address or in a form; raises as `type`."""
        return _name("id", self.query if given is None else given)

    @property
    def theme(self) -> str:
        """The preferred theme, one of THEMES."""
        return choice(self.request.cookies.get(THEME_COOKIE), THEMES)

    @property
    def zone(self) -> str:
        """The preferred time zone, one of ZONES."""
        return choice(self.request.cookies.get(ZONE_COOKIE), ZONES)


class BadAddress(ValueError):
    """The address of a page lacks a parameter, or has an invalid one; the message says which."""


def choice(given: str | None, allowed: tuple[str, ...]) -> str:
    """Return the given value if it is allowed, else the first allowed one."""
    return given if given in allowed else allowed[0]


def _name(what: str, given: Mapping[str, Any]) -> Any:
    text = given.get(what)
    if not isinstance(text, str) or not text:
        raise BadAddress(f"the address names no {what}: ?{what}=... is missing")
    try:
        return parsed(text)
    except ValueError as error:
        raise BadAddress(f"{what}: {error}") from None


# The user


ROLES: Final = ("nobody", "read", "work", "write", "admin")


@dataclass(frozen=True, slots=True)
class UserRights:
    """The rights of a user.

    Attributes:
        name: the user's name; "" for the user that started the server.
        role: the highest of ROLES that the user has.
        changes: whether this server allows changes at all.
        proven: whether the user has shown a token.
        can_log_out: whether the user has logged in.
    """

    name: str = ""
    role: str = "admin"
    changes: bool = True
    proven: bool = False
    can_log_out: bool = False

    def has(self, wanted: str) -> bool:
        """Return whether the user has a role, even on a server that allows no changes."""
        return ROLES.index(wanted) <= ROLES.index(self.role)

    def may(self, wanted: str) -> bool:
        """Return whether the user may act in a role; every role above "read" makes changes."""
        return self.has(wanted) and (self.changes or wanted == "read")


def role_of(request: Request, state: Any) -> UserRights:
    """Return the rights of the request's user."""
    who = request.state.who
    if who is None:
        return UserRights(role="nobody")
    can_log_out = who.session is not None
    return UserRights(who.name, who.role.label, not state.options.read_only, proven=who.proven, can_log_out=can_log_out)


def refuse_commands(visit: Visit, type: JobType) -> None:
    """Raise Refusal for command jobs if the user, or the server, must not work with them."""
    if type == COMMAND_TYPE:
        gate.check_commands(visit.state, visit.request.state.who)


# The environment


@dataclass(frozen=True, slots=True)
class Environment:
    """The name and the colour of this environment on the pages.

    Attributes:
        name: the name; "" for none.
        colour: a hexadecimal CSS colour; "" for none.
    """

    name: str = ""
    colour: str = ""

    def css(self) -> str:
        """Return the style sheet of the environment's colour."""
        return f":root {{ --environment: {self.colour}; }}\n" if self.colour else ""
