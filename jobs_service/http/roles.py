"""Callers, and their roles."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


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
