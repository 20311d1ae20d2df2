"""Where log events go: to structlog, as the application has configured it. Floor: beside the errors.

The library configures nothing. An application that has configured nothing either is told of warnings and errors only:
structlog's default would print every detail to its standard output.
"""

from __future__ import annotations

from typing import Any

import structlog


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

    def debug(self, event: str, **fields: Any) -> None:
        """Log a detail."""
        if structlog.is_configured():
            self._logger().debug(event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Log what somebody should know of."""
        self._logger().warning(event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        """Log what somebody should look after."""
        self._logger().error(event, **fields)

    def exception(self, event: str, **fields: Any) -> None:
        """Log an error with the traceback of the exception that is being handled."""
        self._logger().error(event, exc_info=True, **fields)

    def _logger(self) -> Any:
        return structlog.get_logger(self._name, **self._fields)
