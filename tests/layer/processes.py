"""Rows of processes for tests."""

from __future__ import annotations

from typing import Any

from jobs_service.layer.rows import ProcessRow
from jobs_service.model import HandlerSlots, ProcessInfo, ProcessState

HANDLERS = (HandlerSlots(("a", b"b"), 5, 2), HandlerSlots("email", 2, 0))


def process_row(id: str, *, period: float = 15.0, instance: bytes = b"", **more: Any) -> ProcessRow:
    """Return the row of a process that has just begun, unless `more` says otherwise."""
    usual: dict[str, Any] = {
        "host": "web-1",
        "pid": 4711,
        "worker": "web-1:4711",
        "version": "0.1.0",
        "role": "runner",
        "started": 1_000.5,
        "heard": 1_000.5,
        "state": ProcessState.RUNNING,
        "slots": 7,
        "taken": 2,
        "handlers": HANDLERS,
    }
    return ProcessRow(ProcessInfo(id, **{**usual, **more}), period, instance)
