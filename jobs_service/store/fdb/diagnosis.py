"""Finds out why a cluster does not answer.

FoundationDB's client waits for a cluster in silence, whatever the reason. This module searches like an operator: does
anything listen at the coordinators' addresses, does it speak TLS or not as in the cluster file, and what does the
client's own status report? It blocks for some seconds at most.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import fdb

from jobs_service.errors import in_one_line
from jobs_service.store.fdb.cluster_file import Cluster, Coordinator

_STATUS: Final = b"\xff\xff/status/json"
_PROBE_SECONDS: Final = 0.7
_STATUS_MILLISECONDS: Final = 4000
"""The client itself waits for 2 s before it reports a missing cluster controller."""
_NO_CONTROLLER: Final = "no_cluster_controller"
_MOST_PROBED: Final = 5
_MOST_NAMED: Final = 3
_LONGEST: Final = 300


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


def why_silent(database: Any, cluster: Cluster) -> Reason | None:
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


def _of(coordinators: Sequence[Coordinator] | dict[Coordinator, str], cluster: Cluster) -> str:
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
