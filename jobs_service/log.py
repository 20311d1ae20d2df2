"""Log events go to structlog as the application has configured it, else to the standard library's logging.

The library configures nothing. If the application has configured neither, logging prints warnings and errors to
standard error, and nothing else.

An event that cannot be logged (the disk is full, a renderer of the application fails on a field) is dropped and named
in a line of the standard library's logging; its caller goes on. Otherwise an actor would end, and its supervisor,
which logs as well, could not restart it.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Final

import structlog

_CRITICAL: Final = 50
"""The highest severity, as a number of the standard library."""

_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

_NOTHING: Final = structlog.make_filtering_bound_logger(_CRITICAL).debug
"""The method of structlog's loggers for events below their level: comparing with it is ten times as fast as
making a logger that would then do nothing."""


class EventLog:
    """A source of log events.

    Args:
        name: the logger's name.
        fields: fields of every event.
    """

    def __init__(self, name: str, **fields: Any) -> None:
        self._name = name
        self._fields = fields
        self._plain = logging.getLogger(name)

    def bind(self, **fields: Any) -> EventLog:
        """Return a source whose events have these fields as well."""
        return EventLog(self._name, **{**self._fields, **fields})

    def wants_details(self) -> bool:
        """Whether details are logged at present. Callers ask once before many events with costly fields."""
        if not self._hears("debug"):
            return False
        if not structlog.is_configured():
            return True
        try:
            enabled = getattr(self._logger().bind(), "is_enabled_for", None)
            return enabled is None or bool(enabled(logging.DEBUG))
        except Exception:  # each event tells of it
            return True

    def debug(self, event: str, **fields: Any) -> None:
        """Log a detail."""
        self._log("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log normal operation."""
        self._log("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event that an operator should know of."""
        self._log("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log an event that needs an operator's attention.

        Args:
            event: its name.
            fields: the event's fields; `exc_info` is an exception, or True for the one being handled.
        """
        self._log("error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error with the traceback of the exception being handled."""
        self._log("error", event, {**fields, "exc_info": True})

    def _hears(self, method: str) -> bool:
        """Whether such events are logged at all."""
        if structlog.is_configured():
            return getattr(structlog.get_config()["wrapper_class"], method, None) is not _NOTHING
        return self._plain.isEnabledFor(_LEVELS[method])

    def _log(self, method: str, event: str, fields: dict[str, Any]) -> None:
        if not self._hears(method):
            return
        try:
            if structlog.is_configured():
                getattr(self._logger(), method)(event, **fields)
            else:
                self._log_plainly(method, event, {**self._fields, **fields})
        except Exception as error:
            # Logging prints events that it cannot write, but a handler of the application may raise.
            with contextlib.suppress(Exception):
                self._plain.error("the event %s could not be logged: %r", event, error)

    def _log_plainly(self, method: str, event: str, fields: dict[str, Any]) -> None:
        """Log a line with the standard library: the event and its fields, also in the log record's `fields`."""
        raised = fields.pop("exc_info", None)
        stack = fields.get("stack")
        words = [f"{name}={value!r}" for name, value in fields.items() if name != "stack"]
        text = " ".join([event, *words]) + (f"\n{stack}" if stack else "")
        self._plain.log(
            _LEVELS[method], "%s", text, exc_info=raised, extra={"event": event, "fields": fields}, stacklevel=4
        )

    def _logger(self) -> Any:
        return structlog.get_logger(self._name, **self._fields)
