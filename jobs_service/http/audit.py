"""Who changed what, when, and how many jobs: as log events, and as lines of a file."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import Any

from jobs_service.json_forms import name
from jobs_service.log import EventLog

log = EventLog("jobs_service.http")


class Audit:
    """Writes what was changed over HTTP.

    Args:
        path: of a file that gets a line of JSON for each change; None for log events alone.
    """

    def __init__(self, path: str | None) -> None:
        # Opened anew by whoever rotates it: each line is one write to a file opened for appending.
        self._path = path

    def changed(self, who: str, address: str, action: str, type: Any = None, id: Any = None, jobs: int = 1) -> None:
        """Note a change.

        Args:
            who: the name of the token; empty for whoever is on this machine.
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
        line = json.dumps({**row, "jobs": jobs}).encode() + b"\n"
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, line)
        finally:
            os.close(file)
