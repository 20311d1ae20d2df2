"""Access of the dashboard's users: their identity, their role, and the checks before an action.

The server identifies the user before a page is made, and passes the identity in the state of the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from jobs_service.http import gate
from jobs_service.http.colours import colour_of
from jobs_service.runner.commands import COMMAND_TYPE

if TYPE_CHECKING:
    from starlette.requests import Request

    from jobs_service import JobType
    from jobs_service.dashboard.visit import Visit

ROLES: Final = ("nobody", "read", "work", "write", "admin")


@dataclass(frozen=True, slots=True)
class Role:
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
        """Return the style sheet of the environment's colour, with black or white text for contrast."""
        if not self.colour:
            return ""
        text = "#000000" if _luminance(self.colour) > 0.179 else "#ffffff"
        return f":root {{ --environment: {self.colour}; --on-environment: {text}; }}\n"


def environment_of(state: Any) -> Environment:
    """Return the name and the colour of the environment."""
    return Environment(state.options.environment, colour_of(state.options.colour))


def _luminance(colour: str) -> float:
    """Return the relative luminance of a colour by WCAG, 0 to 1."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def role_of(request: Request, state: Any) -> Role:
    """Return the rights of the request's user."""
    who = request.state.who
    if who is None:
        return Role(role="nobody")
    can_log_out = who.session is not None
    return Role(who.name, who.role.label, not state.options.read_only, proven=who.proven, can_log_out=can_log_out)


def refuse_commands(visit: Visit, type: JobType) -> None:
    """Raise Refusal for command jobs if the user, or the server, must not work with them."""
    if type == COMMAND_TYPE:
        gate.check_commands(visit.state, visit.request.state.who)
