"""The audit log of callers, actions, times and numbers of jobs: log events, and lines of a file. No job contents."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from jobs_service.errors import InvalidSettings
from jobs_service.log import EventLog
from jobs_service.names import name

log = EventLog("jobs_service.http")


_SPARED: Final = 10.0
"""Seconds in which refusals of one kind to one client are noted once: repeated requests must not fill the disk."""
_MOST_CLIENTS: Final = 1000
_LONGEST_PATH: Final = 200


class Audit:
    """Writes changes, exports, refusals, logins and logouts over HTTP.

    Args:
        path: of a file with a line of JSON for each; None for log events alone.

    Raises:
        InvalidSettings: the file cannot be written.
    """

    def __init__(self, path: str | None) -> None:
        # Log rotation may replace the file, so it is opened for each line, which is one appending write.
        self._path = path
        self._refusals: OrderedDict[tuple[str, str, str], tuple[float, int]] = OrderedDict()
        if path is not None:
            try:
                self._append(b"")
            except (OSError, ValueError) as error:
                raise InvalidSettings(f"the audit log {path!r} cannot be written: {error}") from None

    def changed(
        self,
        who: str,
        address: str,
        action: str,
        type: Any = None,
        id: Any = None,
        jobs: int = 1,
        what: Mapping[str, Any] | None = None,
    ) -> None:
        """Note a change.

        Args:
            who: name of the token; empty for the server's own token, or for none.
            address: of the client.
            action: name of the change.
            type, id: the job or type; None for none or several, and then absent from the log event.
            jobs: number of changed jobs.
            what: parameters of the change, and the filter of its jobs; no job contents.
        """
        log.info("http_changed", who=who, address=address, action=action, **_about(type, id, what), jobs=jobs)
        self._write(who, address, action, type, id, jobs, what)

    def exported(
        self, who: str, address: str, type: Any, id: Any = None, jobs: int = 1, what: Mapping[str, Any] | None = None
    ) -> None:
        """Note an export of jobs as a file, of all types if `type` is None; arguments as for `changed`."""
        log.info("http_exported", who=who, address=address, **_about(type, id, what), jobs=jobs)
        self._write(who, address, "export", type, id, jobs, what)

    def logged_in(self, who: str, address: str) -> None:
        """Note a login."""
        log.info("logged_in", who=who, address=address)
        self._write(who, address, "login")

    def logged_out(self, who: str, address: str) -> None:
        """Note a logout."""
        log.info("logged_out", who=who, address=address)
        self._write(who, address, "logout")

    def login_refused(self, address: str) -> None:
        """Note a refused login."""
        if times := self._times("", address, "login"):
            log.warning("login_refused", address=address, times=times)
            self._write("", address, "login_refused", what={"times": times})

    def refused(self, who: str, address: str, kind: str, method: str, path: str) -> None:
        """Note a request that was refused because of its caller or origin.

        Args:
            who, address: as for `changed`.
            kind: of the refusal.
            method, path: of the request.
        """
        if times := self._times(who, address, kind):
            what = {"kind": kind, "method": method, "path": path[:_LONGEST_PATH], "times": times}
            log.info("http_refused", who=who, address=address, **what)
            self._write(who, address, "refused", what=what)

    def _times(self, who: str, address: str, kind: str) -> int:
        """Return the number of refusals to note now; 0 if this one is counted with the next note instead."""
        key, now = (who, address, kind), time.monotonic()
        noted, left_out = self._refusals.pop(key, (-_SPARED, 0))
        is_spared = now - noted < _SPARED
        self._refusals[key] = (noted, left_out + 1) if is_spared else (now, 0)
        if len(self._refusals) > _MOST_CLIENTS:
            self._refusals.popitem(last=False)
        return 0 if is_spared else left_out + 1

    def _write(
        self,
        who: str,
        address: str,
        action: str,
        type: Any = None,
        id: Any = None,
        jobs: int = 0,
        what: Mapping[str, Any] | None = None,
    ) -> None:
        if self._path is None:
            return
        at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        row = {"at": at, "who": who, "address": address, "action": action, "type": name(type), "id": name(id)}
        try:
            self._append(json.dumps({**row, "jobs": jobs, "what": what or {}}, default=str).encode() + b"\n")
        except OSError as error:
            # The change is done: after an error the client would repeat it. The log event above exists.
            log.error("audit_log_failed", path=self._path, error=str(error))

    def _append(self, line: bytes) -> None:
        assert self._path is not None
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A full disk may have cut the previous line, of this process or another one.
            whole = b"\n" + line if line and _ends_within_a_line(self._path, file) else line
            if (written := os.write(file, whole)) < len(whole):
                raise OSError(f"only {written} of {len(whole)} bytes were written")
        finally:
            os.close(file)


def chosen(filter: Mapping[str, Any]) -> dict[str, Any]:
    """Return a filter for the audit log: tests of data are reduced to the names of their fields."""
    given = {key: value for key, value in filter.items() if value not in (None, "", ())}
    return {key: _fields(value) if key == "data" else value for key, value in given.items()}


def _about(type: Any, id: Any, what: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (("type", type), ("id", id), ("what", what or None)) if value is not None}


def _fields(data: Any) -> list[str]:
    tests = data if isinstance(data, list | tuple | dict) else [data]
    return [re.split("[=~]", str(test), maxsplit=1)[0] for test in tests]


def _ends_within_a_line(path: str, file: int) -> bool:
    """Return whether a file, open for writing, ends in the middle of a line."""
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or not found.st_size:
        return False
    try:
        with open(path, "rb") as read:
            read.seek(found.st_size - 1)
            return read.read(1) not in (b"\n", b"")
    except PermissionError:  # it may be written alone
        return False
