"""Configures logging for the program: lines for people on a terminal, JSON elsewhere.

The library itself configures no logging.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO, cast

import structlog

from jobs_service.cli import program
from jobs_service.cli.parsing import Level
from jobs_service.names import printable, shown

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

_PASSES: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a full disk, which may have room again later."""


def configure(level: Level, people: bool | None = None) -> None:
    """Send log events to stderr, including the standard library's logging.

    On a terminal: time, level, event and its fields, in colour. Elsewhere: one JSON object per line with `timestamp`
    (ISO 8601, UTC), `level`, `event`, the event's fields and, after a failure, `exception`.

    Args:
        level: the least severe level that is logged.
        people: whether people read it, on a terminal at the parent's end of a worker's stderr; None to look.
            Otherwise, each line has the process id.
    """
    is_one_of_several = people is not None
    people = sys.stderr.isatty() if people is None else people
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%SZ" if people else "iso", utc=True),
        _name_jobs,
        structlog.processors.format_exc_info,
    ]
    if is_one_of_several and not people:  # people see it before the line
        shared.insert(0, _name_process)
    rendering: list[Processor] = (
        [_escape, structlog.dev.ConsoleRenderer(colors=True, exception_formatter=structlog.dev.plain_traceback)]
        if people
        else [structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _LogStream(sys.stderr))),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(handlers=[handler], level=number, force=True)
    logging.captureWarnings(True)


class _LogStream:
    """A stream whose writes never fail: an event that cannot be written is dropped, and the logging code goes on.

    While the disk is full, each event is tried. After the stream's reader is gone, all further events are dropped.

    It does not inherit from Python's file classes, which close themselves when they are collected and then flush a
    stream that may be closed already.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if not self._stream.closed:
            try:
                return self._stream.write(text)
            except OSError as error:
                self._drop_unless_it_passes(error)
        return len(text)

    def flush(self) -> None:
        if not self._stream.closed:
            try:
                self._stream.flush()
            except OSError as error:
                self._drop_unless_it_passes(error)

    def _drop_unless_it_passes(self, error: OSError) -> None:
        if error.errno not in _PASSES:
            program.drop(self._stream)


def _name_jobs(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Write types and ids in the form that the command line accepts."""
    for field in ("type", "id"):
        if field in event:
            event[field] = shown(event[field])
    return event


def _name_process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add the id of this process."""
    event.setdefault("pid", os.getpid())
    return event


def _escape(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape control characters of terminals."""
    for field, value in event.items():
        if isinstance(value, str):
            event[field] = "\n".join(printable(line) for line in value.split("\n"))
    return event
