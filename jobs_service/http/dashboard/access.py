"""What the dashboard asks of the server that it is part of: who somebody is, what they may do, what may be shown.

The server has found out who asks before a page is made, and says so in the state of the request.
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
    from jobs_service.http.dashboard.visit import Visit

ROLES: Final = ("nobody", "read", "work", "write", "admin")


@dataclass(frozen=True, slots=True)
class Role:
    """What somebody may do.

    Attributes:
        name: of who asks; "" for whoever has started the server.
        role: the highest of ROLES that they have.
        changes: whether anything may be changed on this server at all.
        proven: whether they have shown a token.
        can_log_out: whether they have logged in.
    """

    name: str = ""
    role: str = "admin"
    changes: bool = True
    proven: bool = False
    can_log_out: bool = False

    def has(self, wanted: str) -> bool:
        """Return whether that is enough for a role, whatever the server lets anybody change."""
        return ROLES.index(wanted) <= ROLES.index(self.role)

    def may(self, wanted: str) -> bool:
        """Return whether they may do what needs a role; more than "read" changes something."""
        return self.has(wanted) and (self.changes or wanted == "read")


@dataclass(frozen=True, slots=True)
class Environment:
    """What the pages call this environment.

    Attributes:
        name: "" for nothing.
        colour: as CSS writes it in hexadecimal; "" for none.
    """

    name: str = ""
    colour: str = ""

    def css(self) -> str:
        """Return the style of the environment's colour, with black or white upon it, whichever is read better."""
        if not self.colour:
            return ""
        text = "#000000" if _luminance(self.colour) > 0.179 else "#ffffff"
        return f":root {{ --environment: {self.colour}; --on-environment: {text}; }}\n"


def environment_of(state: Any) -> Environment:
    """Return name and colour of the environment."""
    return Environment(state.options.environment, colour_of(state.options.colour))


def _luminance(colour: str) -> float:
    """Return how bright a colour is, 0 to 1, as WCAG measures it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def role_of(request: Request, state: Any) -> Role:
    """Return what who asks may do."""
    who = request.state.who
    if who is None:
        return Role(role="nobody")
    can_log_out = who.session is not None
    return Role(who.name, who.role.label, not state.options.read_only, proven=who.proven, can_log_out=can_log_out)


def refuse_commands(visit: Visit, type: JobType) -> None:
    """Raise Refusal when somebody has to do with commands who may not, or a server that does not."""
    if type == COMMAND_TYPE:
        gate.check_commands(visit.state, visit.request.state.who)


def refuse_to_run(visit: Visit, type: JobType) -> None:
    """Raise Refusal when somebody may not say what is run of a type."""
    gate.check_may_run(visit.state, visit.request.state.who, type)


def note(visit: Visit, action: str, type: JobType | None = None, id: Any = None, jobs: int = 1, **what: Any) -> None:
    """Note in the audit log what was changed; `what` has nothing of what is in a job."""
    visit.state.audit.changed(visit.role.name, visit.request.state.client, action, type, id, jobs, what)
