"""Who asks, and what they may do."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Role(enum.IntEnum):
    """What somebody may do; each has what the ones before it have."""

    NOBODY = 0
    """What needs no role: whether the process lives, the documentation."""
    READ = 1
    """Look at everything."""
    WORK = 2
    """Accept jobs, and end them."""
    WRITE = 3
    """Add, change and remove jobs, make and pause types."""
    ADMIN = 4
    """Take types away; run commands, where those are reachable at all."""

    @property
    def label(self) -> str:
        """The role as it is written."""
        return self.name.lower()


TOKEN_ROLES = {role.label: role for role in Role if role is not Role.NOBODY}


class Session(NamedTuple):
    """A login.

    Attributes:
        expires: seconds since the epoch.
        digest: SHA-256 of what the cookie holds, hexadecimal.
    """

    expires: float
    digest: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks.

    Attributes:
        name: of the token, or what the host application calls them; empty for whoever has started the server.
        role: what they may do.
        proven: whether by a token, or by the host application; only then may an admin run commands.
        session: what the store has of the login whose cookie was shown, None for none.
    """

    name: str
    role: Role
    proven: bool = False
    session: Session | None = None
