"""Where log events go: to structlog, as the application has configured it.

The library configures nothing. If the application has configured nothing either, only warnings and errors are logged:
structlog's default would print every detail to the application's standard output.

An event that cannot be logged (the disk is full, a renderer of the application's does not know what to make of a field)
is dropped, and named in a line of the standard library's logging: whoever logs goes on. An actor would end otherwise,
and what restarts it, which logs as well, could not.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from typing import Any, Final

import structlog

_DEBUG: Final = 10
_CRITICAL: Final = 50
"""The severity of details, and of the worst, in the standard library's numbers."""

_NOTHING: Final = structlog.make_filtering_bound_logger(_CRITICAL).debug
"""The method of structlog's loggers for events that are below their level: comparing with it is ten times as fast as
making a logger that would then do nothing."""


class EventLog:
    """A source of log events.

    Args:
        name: of the logger, for structlog.
        fields: in every event.
    """

    def __init__(self, name: str, **fields: Any) -> None:
        self._name = name
        self._fields = fields

    def bind(self, **fields: Any) -> EventLog:
        """Return a source whose events have these fields as well."""
        return EventLog(self._name, **{**self._fields, **fields})

    def wants_details(self) -> bool:
        """Whether details are logged at present. Asked once before many events, whose fields cost time to collect."""
        if not structlog.is_configured() or not _is_heard("debug"):
            return False
        try:
            enabled = getattr(self._logger().bind(), "is_enabled_for", None)
            return enabled is None or bool(enabled(_DEBUG))
        except Exception:  # each event tells of it
            return True

    def debug(self, event: str, **fields: Any) -> None:
        """Log a detail."""
        if structlog.is_configured() and _is_heard("debug"):
            self._log("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log what happens as it should."""
        if structlog.is_configured() and _is_heard("info"):
            self._log("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log what somebody should know of."""
        if _is_heard("warning"):
            self._log("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log what somebody should look after.

        Args:
            event: its name.
            fields: of the event; `exc_info` is an exception, or True for the one that is being handled.
        """
        if "exc_info" in fields and not structlog.is_configured():
            # Structlog's default shows local variables beside a traceback, among them jobs' data.
            fields["stack"] = _plain(fields.pop("exc_info"))
        self._log("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        self.error(event, exc_info=True, **fields)

    def _log(self, method: str, event: str, fields: dict[str, Any]) -> None:
        try:
            getattr(self._logger(), method)(event, **fields)
        except Exception as error:
            # What logging itself cannot write it prints, but a handler of the application's may raise.
            with contextlib.suppress(Exception):
                logging.getLogger(self._name).error("the event %s could not be logged: %r", event, error)

    def _logger(self) -> Any:
        return structlog.get_logger(self._name, **self._fields)


def _plain(error: BaseException | bool | None) -> str:
    """Return a traceback as Python prints it."""
    shown = error if isinstance(error, BaseException) else sys.exception()
    return "".join(traceback.format_exception(shown)).rstrip()


def _is_heard(method: str) -> bool:
    """Whether the loggers of the present configuration do anything with such events."""
    return getattr(structlog.get_config()["wrapper_class"], method, None) is not _NOTHING
