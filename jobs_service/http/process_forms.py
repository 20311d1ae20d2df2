"""Processes as JSON and back, without loss, for both ends of the HTTP interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs_service.http.values import name_of, seconds_of, time
from jobs_service.model import HandlerSlots, ProcessAction, ProcessInfo, ProcessRequest, ProcessState


def process(info: ProcessInfo) -> dict[str, Any]:
    """Return a process as JSON; its times have enough digits to restore the same number of seconds."""
    form, asked = info.to_dict(), info.request
    if asked is not None:
        form["request"] |= {"at": time(asked.at)}
    return {**form, "started": time(info.started), "heard": time(info.heard)}


def process_of(form: Mapping[str, Any]) -> ProcessInfo:
    """Return the inverse of `process`.

    Raises:
        ValueError, TypeError, KeyError: the JSON is malformed.
    """
    asked = form["request"]
    handlers = [HandlerSlots(name_of(each["type"]), each["slots"], each["taken"]) for each in form["handlers"]]
    return ProcessInfo(
        form["id"],
        form["host"],
        form["pid"],
        form["worker"],
        form["version"],
        form["role"],
        _time_of(form["started"]),
        _time_of(form["heard"]),
        ProcessState(form["state"]),
        form["slots"],
        form["taken"],
        tuple(handlers),
        form["unnamed"],
        None if asked is None else ProcessRequest(ProcessAction(asked["action"]), asked["who"], _time_of(asked["at"])),
    )


def _time_of(form: Any) -> float:
    seconds = seconds_of(form)
    if seconds is None:
        raise ValueError("no time")
    return seconds
