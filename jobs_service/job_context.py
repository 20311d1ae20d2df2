"""The context of jobs: a few words, such as a tenant and a request's id, that go with a job to its runs and their logs.

It is kept with the job, outside its data, beside its limits, and only if it is not empty.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from structlog.contextvars import bind_contextvars

from jobs_service.errors import InvalidJob, a_kind_of, shown

MOST_BYTES: Final = 1000
"""Most bytes of a context as JSON."""

HEADER: Final = "Job-Context"
"""The header of HTTP requests that carries the caller's context, as JSON in ASCII."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,49}")
_TAKEN: Final = frozenset({"event", "job_id", "job_type"})
"""Names that log lines have for something else."""

_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})
_current: ContextVar[Mapping[str, str] | None] = ContextVar("jobs_service.context", default=None)


class JobContext:
    """The context of the jobs that are added here; see the instance `context`."""

    def __call__(self, values: Mapping[str, str] | None = None, /, **more: str) -> AbstractContextManager[None]:
        """Add words to the context, for the jobs that are added within the block.

            with context(tenant="acme", locale="de"):
                await jobs.enqueue(welcome, "ada")

        Args:
            values, more: strings by name; a name that is there already gets another value.

        Raises:
            InvalidJob: a name or a value that no context can have, or more than 1,000 bytes of JSON altogether.
        """
        if values is not None and not isinstance(values, Mapping):
            raise InvalidJob(f"context {shown(values)}: {a_kind_of(values)}; allowed is a mapping of strings")
        return _within(checked({**self.get(), **(values or {}), **more}))

    def get(self) -> Mapping[str, str]:
        """Return the context here: in a handler, that of its job."""
        return current() or _EMPTY


context: Final = JobContext()
"""The context of the jobs that are added here: `with context(tenant="acme"):`, and `context.get()`."""


current: Final = _current.get
"""Returns the caller's context, to be kept with a job; None for none."""


def checked(values: Mapping[Any, Any]) -> Mapping[str, str]:
    """Return a context, checked.

    Raises:
        InvalidJob: a name or a value that no context can have, or too many of them.
    """
    for name, value in values.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            allowed = "up to 50 letters, digits, _ . and -, beginning with a letter"
            raise InvalidJob(f"context: the name {shown(name)}: allowed are {allowed}")
        if name in _TAKEN:
            raise InvalidJob(f"context: the name {name} has a meaning of its own in log lines; choose another")
        if not isinstance(value, str):
            raise InvalidJob(f"context: {name}={shown(value)}: {a_kind_of(value)}; allowed is str")
    size = len(_encoded(values))
    if size > MOST_BYTES:
        raise InvalidJob(f"context: it takes {size} bytes as JSON; allowed are {MOST_BYTES}: give the data the rest")
    return MappingProxyType({str(name): str(value) for name, value in values.items()})


def enter(values: Mapping[str, str]) -> None:
    """Make a job's context that of the present task, and of its log lines."""
    _current.set(values)
    bind_contextvars(**values)


@contextlib.contextmanager
def _within(values: Mapping[str, str] | None) -> Iterator[None]:
    token = _current.set(values or None)
    try:
        yield
    finally:
        _current.reset(token)


def without() -> AbstractContextManager[None]:
    """Return a block without context, for tasks that work for others than their creator."""
    return _within(None)


# Over HTTP


def headers() -> dict[str, str]:
    """Return the caller's context as request headers; none if it is empty."""
    values = current()
    return {HEADER: _encoded(values).decode()} if values else {}


def of_request(header: str | None) -> AbstractContextManager[None]:
    """Return a block for answering a request with the context of its header, if it has one.

    Raises:
        InvalidJob: the header is no JSON object of strings, or not a context.
    """
    if header is None:
        return contextlib.nullcontext()
    try:
        values = json.loads(header)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InvalidJob(f"the header {HEADER}: {shown(header)} is no JSON object of strings")
    return _within(checked(values))


def _encoded(values: Mapping[str, str]) -> bytes:
    return json.dumps(dict(values), separators=(",", ":")).encode()
