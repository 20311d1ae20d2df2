"""Processes that use a store, as operators see them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from jobs_service import json_forms
from jobs_service.model.terms import JobType


class ProcessState(enum.StrEnum):
    """What a process does, or what became of it."""

    RUNNING = "running"
    """It takes jobs for its handlers, if it has any."""
    QUIET = "quiet"
    """It takes no more jobs, and ends those that it has."""
    STOPPING = "stopping"
    """It ends."""
    SILENT = "silent"
    """It was not heard of for some time: it is dead, or has been away, or its clock is wrong."""
    DEAD = "dead"
    """It has ended without saying so."""


class ProcessAction(enum.StrEnum):
    """What a process can be asked to do."""

    QUIET = "quiet"
    """To take no more jobs, and to end those that it has."""
    RESUME = "resume"
    """To take jobs again."""
    STOP = "stop"
    """To end, as on SIGTERM."""


@dataclass(frozen=True, slots=True)
class ProcessRequest:
    """What a process was asked to do last.

    Attributes:
        action: what.
        who: has asked; empty where nobody was named.
        at: when, in seconds since the epoch, by the clock of the process that was told first.
    """

    action: ProcessAction
    who: str
    at: float


@dataclass(frozen=True, slots=True)
class HandlerSlots:
    """One handler of a process.

    Attributes:
        type: of its jobs.
        slots: how many of them it runs at the same time.
        taken: how many it ran when the process was heard of last.
    """

    type: JobType
    slots: int
    taken: int


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process that runs handlers, or is a daemon; times are seconds since the epoch, by its own clock.

    Attributes:
        id: of this run of it; one that is started anew has another.
        host, pid: where it is, and the number that it has there.
        worker: what the history of its jobs calls it.
        version: of jobs_service.
        role: "daemon" for `jobs-service serve`, "runner" for a program that runs handlers itself.
        started: since when it is there.
        heard: when it was heard of last.
        state: what it does.
        slots: how many jobs its handlers run at the same time.
        taken: how many they ran when it was heard of last.
        handlers: what it runs; the first ones by name where there are very many.
        unnamed: how many more handlers it has.
        request: what it was asked to do last; None for nothing.
    """

    id: str
    host: str
    pid: int
    worker: str
    version: str
    role: str
    started: float
    heard: float
    state: ProcessState
    slots: int = 0
    taken: int = 0
    handlers: tuple[HandlerSlots, ...] = ()
    unnamed: int = 0
    request: ProcessRequest | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON; times in ISO 8601."""
        asked = self.request
        return {
            "id": self.id,
            "host": self.host,
            "pid": self.pid,
            "worker": self.worker,
            "version": self.version,
            "role": self.role,
            "state": self.state.value,
            "started": _time(self.started),
            "heard": _time(self.heard),
            "slots": self.slots,
            "taken": self.taken,
            "handlers": [
                {"type": json_forms.name(each.type), "slots": each.slots, "taken": each.taken} for each in self.handlers
            ],
            "unnamed": self.unnamed,
            "request": None
            if asked is None
            else {"action": asked.action.value, "who": asked.who, "at": _time(asked.at)},
        }


def _time(seconds: float) -> str | None:
    return json_forms.time(datetime.fromtimestamp(seconds, UTC))
