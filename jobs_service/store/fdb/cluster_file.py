"""The cluster file, which names a cluster by its coordinators: read, checked, and watched for changes.

The client reads it when a database is opened. The client rewrites it after a change of the coordinators by the
cluster's operators, but does not follow if another cluster is written into it.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from jobs_service.errors import StoreError, shown

CONNECTION_STRING: Final = b"\xff\xff/connection_string"
"""The key under which the client shows its current line of the cluster file."""

_VARIABLE: Final = "FDB_CLUSTER_FILE"
_INSTALLED: Final = "/usr/local/etc/foundationdb" if sys.platform == "darwin" else "/etc/foundationdb"
_NAME: Final = "fdb.cluster"

_FORM: Final = re.compile(r"(\w+):(\w+)@([^\s,@]+:\d+(?::tls)?(?:,[^\s,@]+:\d+(?::tls)?)*)")
_LOOK_EVERY: Final = 3.0


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The address of one of a cluster's coordinators.

    Attributes:
        host: an IP address without brackets, or a name.
        port: the port.
        tls: whether it speaks TLS.
    """

    host: str
    port: int
    tls: bool

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `HOST:PORT[:tls]`."""
        bare = text.removesuffix(":tls")
        host, _, port = bare.rpartition(":")
        return cls(host.strip("[]"), int(port), bare != text)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}{':tls' if self.tls else ''}"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The content of a cluster file.

    Attributes:
        text: the line.
        description: the operators' name of the cluster.
        coordinators: the coordinators' addresses.
    """

    text: str
    description: str
    coordinators: tuple[Coordinator, ...]

    @classmethod
    def parse(cls, content: str) -> Self | None:
        """Parse a file's content; None if it is not a cluster file."""
        lines = [line.strip() for line in content.splitlines()]
        named = [line for line in lines if line and not line.startswith("#")]
        match = _FORM.fullmatch(named[0]) if len(named) == 1 else None
        if match is None:
            return None
        description, _, addresses = match.groups()
        return cls(named[0], description, tuple(Coordinator.parse(each) for each in addresses.split(",")))

    def is_same_as(self, text: str) -> bool:
        """Whether a line names the same cluster with the same coordinators, in any order."""
        other = Cluster.parse(text)
        return (
            other is not None
            and self.text.partition("@")[0] == other.text.partition("@")[0]
            and set(self.coordinators) == set(other.coordinators)
        )


def read_cluster_file(path: str) -> Cluster:
    """Read a cluster file.

    Raises:
        StoreError: it cannot be read, or is no cluster file: the client would wait for ever with it.
    """
    try:
        found = Cluster.parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"store {shown(f'fdb:{path}')}: the cluster file cannot be read: {error.strerror}") from None
    except ValueError:
        found = None
    if found is None:
        raise StoreError(
            f"store {shown(f'fdb:{path}')}: not a cluster file; one has the line DESCRIPTION:ID@ADDRESS:PORT,..."
        )
    return found


def default_cluster_file() -> str:
    """Return the path of the client's default file."""
    named = os.environ.get(_VARIABLE)
    if named:
        return named
    here = Path(_NAME)
    return str(here.absolute() if here.exists() else Path(_INSTALLED, _NAME))


class FileWatch:
    """Detects that a cluster file names another cluster than the one in use.

    After a change of the coordinators by operators, file and client change one after the other. So a difference counts
    only if it is still there at the next comparison.

    Args:
        path: path of the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen = self._stamp()
        self._look_at = 0.0
        self._suspected = False

    def is_due(self, now: float) -> bool:
        """Return whether the file was written and should be compared; look at the file only now and then.

        Args:
            now: seconds of a monotonic clock.
        """
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_EVERY
        stamp = self._stamp()
        changed = stamp != self._seen
        self._seen = stamp
        return changed or self._suspected

    def differing(self, used: str) -> Cluster | None:
        """Return the cluster that the file names if it is another one; None also while the difference may be temporary.

        Args:
            used: the cluster file's line as the client uses it.
        """
        try:
            said = Cluster.parse(Path(self.path).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            said = None  # It names no cluster, so it misleads nobody.
        if said is None or said.is_same_as(used):
            self._suspected = False
            return None
        self._suspected = not self._suspected
        return None if self._suspected else said

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns
