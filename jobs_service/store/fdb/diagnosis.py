"""The cluster file, which names a cluster by its coordinators; and the reason why a cluster does not answer.

The client reads the file when a database is opened. The client rewrites it after a change of the coordinators by the
cluster's operators, but does not follow if another cluster is written into it.

FoundationDB's client waits for a cluster in silence, whatever the reason. `why_silent` searches like an operator: does
anything listen at the coordinators' addresses, does it speak TLS or not as in the cluster file, and what does the
client's own status report? It blocks for some seconds at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import fdb

from jobs_service.errors import StoreError, in_one_line, shown

CONNECTION_STRING: Final = b"\xff\xff/connection_string"
"""The key under which the client shows its current line of the cluster file."""

_VARIABLE: Final = "FDB_CLUSTER_FILE"
_INSTALLED: Final = "/usr/local/etc/foundationdb" if sys.platform == "darwin" else "/etc/foundationdb"
_NAME: Final = "fdb.cluster"

_FORM: Final = re.compile(r"(\w+):(\w+)@([^\s,@]+:\d+(?::tls)?(?:,[^\s,@]+:\d+(?::tls)?)*)")
_LOOK_EVERY: Final = 3.0

_STATUS: Final = b"\xff\xff/status/json"
_PROBE_SECONDS: Final = 0.7
_STATUS_MILLISECONDS: Final = 4000
"""The client itself waits for 2 s before it reports a missing cluster controller."""
_NO_CONTROLLER: Final = "no_cluster_controller"
_MOST_PROBED: Final = 5
_MOST_NAMED: Final = 3
_LONGEST: Final = 300


# The cluster file


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
class ClusterFile:
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
        other = ClusterFile.parse(text)
        return (
            other is not None
            and self.text.partition("@")[0] == other.text.partition("@")[0]
            and set(self.coordinators) == set(other.coordinators)
        )


def read_cluster_file(path: str) -> ClusterFile:
    """Read a cluster file.

    Raises:
        StoreError: it cannot be read, or is no cluster file: the client would wait for ever with it.
    """
    try:
        found = ClusterFile.parse(Path(path).read_text(encoding="utf-8"))
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

    def differing(self, used: str) -> ClusterFile | None:
        """Return the cluster that the file names if it is another one; None also while the difference may be temporary.

        Args:
            used: the cluster file's line as the client uses it.
        """
        try:
            said = ClusterFile.parse(Path(self.path).read_text(encoding="utf-8"))
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


# The reason of silence


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a cluster does not answer.

    Attributes:
        text: the reason in one line, for an error.
        lasting: whether waiting does not help, because an operator must change something.
    """

    text: str
    lasting: bool = False

    def __str__(self) -> str:
        return self.text


def why_silent(database: Any, cluster: ClusterFile) -> Reason | None:
    """Return why a cluster does not answer, None if no reason shows; blocks.

    Args:
        database: the client's handle.
        cluster: the content of the cluster file.
    """
    coordinators = cluster.coordinators[:_MOST_PROBED]
    failures = {each: failure for each in coordinators if (failure := _refusal(each)) is not None}
    if len(failures) > len(coordinators) // 2:
        return Reason(f"{_of(failures, cluster)} cannot be reached: {next(iter(failures.values()))}")
    reached = [each for each in coordinators if each not in failures]
    strangers = [each for each in reached if _speaks_tls(each) != each.tls]
    if len(strangers) > len(coordinators) // 2:
        wants = "TLS, and the cluster file lacks :tls behind their addresses"
        if strangers[0].tls:
            wants = "no TLS, and the cluster file has :tls behind their addresses"
        return Reason(f"{_of(strangers, cluster)} speak {wants}", lasting=True)
    if any(each.tls for each in reached):
        return _status_reason(database) or Reason(
            "the coordinators speak TLS; are FDB_TLS_CERTIFICATE_FILE, FDB_TLS_KEY_FILE and FDB_TLS_CA_FILE set to "
            "what the cluster accepts?"
        )
    return _status_reason(database)


def _of(coordinators: Sequence[Coordinator] | dict[Coordinator, str], cluster: ClusterFile) -> str:
    names = ", ".join(str(each) for each in list(coordinators)[:_MOST_NAMED])
    more = ", ..." if len(coordinators) > _MOST_NAMED else ""
    return f"{len(coordinators)} of {len(cluster.coordinators)} coordinators ({names}{more})"


def _refusal(coordinator: Coordinator) -> str | None:
    """Return why a coordinator takes no connection; None if it takes one."""
    try:
        with socket.create_connection((coordinator.host, coordinator.port), _PROBE_SECONDS):
            return None
    except TimeoutError:
        return f"no answer within {_PROBE_SECONDS:g} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _speaks_tls(coordinator: Coordinator) -> bool:
    """Whether the listener answers the beginning of a TLS connection with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Only a greeting is sent, and nothing of the answer is trusted: no need to verify who it is.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((coordinator.host, coordinator.port), _PROBE_SECONDS) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except ssl.SSLEOFError:
        return False  # It hung up.
    except ssl.SSLError as error:
        # An alert is an answer: it wants a certificate, or another version.
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _status_reason(database: Any) -> Reason | None:
    """Return the reason from the client's own status."""
    native = database.create_transaction()
    native.options.set_timeout(_STATUS_MILLISECONDS)
    try:
        status = json.loads(bytes(native.get(_STATUS).wait()))
    except (fdb.FDBError, ValueError, TypeError):
        return None
    finally:
        with contextlib.suppress(fdb.FDBError):
            native.cancel()
    return reason_in(status)


def reason_in(status: Any) -> Reason | None:
    """Return why there are no transactions according to a status document; None if it gives no reason."""
    client = status.get("client", {})
    messages = [*client.get("messages", []), *status.get("cluster", {}).get("messages", [])]
    for message in messages:
        name, description = str(message.get("name", "")), str(message.get("description", ""))
        if name == "status_incomplete_timeout" or not description:
            continue
        if name == _NO_CONTROLLER:
            return Reason(
                "its coordinators answer, but know no cluster of this description and id: are these, in front of the @ "
                "in the cluster file, those of the servers' own file, and do the servers run?"
            )
        return Reason(in_one_line(f"{description[:1].lower()}{description[1:]} ({name})", _LONGEST))
    coordinators = client.get("coordinators", {})
    if coordinators and not coordinators.get("quorum_reachable", True):
        return Reason("the client reaches no majority of the coordinators")
    if client.get("database_status", {}).get("available") is False:
        return Reason("the database is not available: is it configured? (fdbcli --exec status)")
    return None
