"""Who changed what, when, and how many jobs: as log events, and as lines of a file."""

from __future__ import annotations

import json
import os
import stat
from datetime import UTC, datetime
from typing import Any

from jobs_service.errors import InvalidSettings
from jobs_service.json_forms import name
from jobs_service.log import EventLog

log = EventLog("jobs_service.http")


class Audit:
    """Writes what was changed over HTTP.

    Args:
        path: of a file that gets a line of JSON for each change; None for log events alone.

    Raises:
        InvalidSettings: the file cannot be written.
    """

    def __init__(self, path: str | None) -> None:
        # Opened anew by whoever rotates it: each line is one write to a file opened for appending.
        self._path = path
        if path is not None:
            try:
                self._append(b"")
            except (OSError, ValueError) as error:
                raise InvalidSettings(f"the audit log {path!r} cannot be written: {error}") from None

    def changed(self, who: str, address: str, action: str, type: Any = None, id: Any = None, jobs: int = 1) -> None:
        """Note a change.

        Args:
            who: the name of the token; empty for whoever has started the server.
            address: from which the request came.
            action: what was done.
            type, id: the job or type, None where it is about none or several; the log event leaves that out.
            jobs: how many were changed.
        """
        about = {key: value for key, value in (("type", type), ("id", id)) if value is not None}
        log.info("http_changed", who=who, address=address, action=action, **about, jobs=jobs)
        if self._path is None:
            return
        at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        row = {"at": at, "who": who, "address": address, "action": action, "type": name(type), "id": name(id)}
        try:
            self._append(json.dumps({**row, "jobs": jobs}).encode() + b"\n")
        except OSError as error:
            # It is done: whoever were told that it has failed would do it again. The event above is there.
            log.error("audit_log_failed", path=self._path, error=str(error))

    def _append(self, line: bytes) -> None:
        assert self._path is not None
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A full disk may have cut the line before, of this process or another one.
            whole = b"\n" + line if line and _ends_within_a_line(self._path, file) else line
            if (written := os.write(file, whole)) < len(whole):
                raise OSError(f"only {written} of {len(whole)} bytes were written")
        finally:
            os.close(file)


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
