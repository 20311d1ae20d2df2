"""Traces by OpenTelemetry: a span for each added job, and one for each run, in whichever process.

This needs the extra `tracing`, and an application that sets a tracer provider. A process that has not imported
OpenTelemetry has no provider, so this module does not import it either: it checks for the loaded module.

Traces are for observers. Where the application's tracing fails (a provider, a span, a processor or a sampler raises), a
span or a part of it is missing and the log says so, but jobs are added, run and ended as usual.

The context (W3C's traceparent and tracestate) is kept with the job, outside its data, beside its limits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial, wraps
from sys import modules
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypeVar

from jobs_service import names, run_data
from jobs_service.errors import kind_of
from jobs_service.log import EventLog

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from jobs_service.model import Job, JobError, JobId, JobType

log = EventLog("jobs_service.tracing")

P = ParamSpec("P")
T = TypeVar("T")

Trace: TypeAlias = tuple[str, str]
"""A traceparent and a tracestate; the latter may be empty."""

_SYSTEM: Final = "jobs_service"
"""The name of the tracer, and of the messaging system in its spans."""
MODULE: Final = "opentelemetry.trace"
"""As long as this module is not loaded, nothing is traced."""
_HEADERS: Final = ("traceparent", "tracestate")
_LONGEST: Final = 512
"""Most characters of a kept context: W3C wants 512 of a tracestate."""


class _Nothing(AbstractContextManager[None]):
    """A null span. contextlib's takes twice as long, and each added job uses one."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        return None


_NOTHING: Final = _Nothing()


class _Guarded(AbstractContextManager["Span | None"]):
    """A span that logs its own failures; its value is None if it cannot be begun.

    Args:
        begin: makes the span; a tracer may raise here already.
    """

    __slots__ = ("_begin", "_span")

    def __init__(self, begin: Callable[[], AbstractContextManager[Span]]) -> None:
        self._begin = begin
        self._span: AbstractContextManager[Span] | None = None

    def __enter__(self) -> Span | None:
        try:
            begun = self._begin()
            span = begun.__enter__()
            self._span = begun
            return span
        except Exception as error:
            log.error("tracing_failed", exc_info=error)
            return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._span is None:
            return
        try:
            self._span.__exit__(kind, error, trace)
        except Exception as failed:
            log.error("tracing_failed", exc_info=failed)


def _harmless(function: Callable[P, T]) -> Callable[P, T | None]:
    """Return a function that logs exceptions of the application's tracing and then returns None."""

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            log.error("tracing_failed", exc_info=error)
            return None

    return guarded


_known: tuple[Any, Any] = (None, None)
"""The latest provider, and its tracer."""


@_harmless
def tracer() -> Tracer | None:
    """Return the tracer of the application's provider; None if it has none."""
    global _known
    api = modules.get(MODULE)
    if api is None:
        return None
    try:
        provider = api.get_tracer_provider()
        if provider is not _known[0]:
            is_real = not isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider)
            _known = provider, provider.get_tracer(_SYSTEM) if is_real else None
    except AttributeError:  # it is being imported just now
        return None
    found: Tracer | None = _known[1]
    return found


@_harmless
def current() -> Trace | None:
    """Return the caller's context, to be kept with a job; None if nothing is traced."""
    if MODULE not in modules or tracer() is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    parent, state = carrier.get("traceparent", ""), carrier.get("tracestate", "")
    return (parent, state if len(state) <= _LONGEST else "") if parent else None


def headers() -> dict[str, str]:
    """Return the caller's context as request headers; empty if nothing is traced."""
    trace = current() if MODULE in modules else None
    return {} if trace is None else {name: value for name, value in zip(_HEADERS, trace, strict=True) if value}


def within(parent: str | None, state: str | None) -> AbstractContextManager[None]:
    """Return a context manager for answering a request: it attaches the headers' context unless a span is active."""
    if parent is None or MODULE not in modules or tracer() is None:
        return _NOTHING
    return _within({"traceparent": parent, "tracestate": state or ""})


@contextlib.contextmanager
def _within(carrier: dict[str, str]) -> Iterator[None]:
    from opentelemetry.context import attach, detach
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if _has_span() is not False:
        yield
        return
    token = attach(TraceContextTextMapPropagator().extract(carrier))
    try:
        yield
    finally:
        detach(token)


@_harmless
def _has_span() -> bool:
    """Whether a span is active already, such as one of a web framework's tracing."""
    from opentelemetry.trace import get_current_span

    return get_current_span().get_span_context().is_valid


# In the job


def carrier_of(packed: bytes) -> dict[str, str]:
    """Return the context in run data as a propagator takes it."""
    trace, _ = run_data.origin_of(packed)
    found = {} if trace is None else {"traceparent": trace[0], "tracestate": trace[1]}
    return {name: value for name, value in found.items() if value}


# Spans


def sending(operation: str, type: JobType, id: JobId | None = None) -> AbstractContextManager[Span | None]:
    """Return a context manager for adding a job: a span, if anything is traced.

    Args:
        operation: "add", "enqueue", "resubmit".
        type, id: of the job; no id for many jobs, or if it is not known yet.
    """
    if MODULE not in modules or (found := tracer()) is None:
        return _NOTHING
    return _sending(found, operation, type, id)


@contextlib.contextmanager
def _sending(found: Tracer, operation: str, type: JobType, id: JobId | None) -> Iterator[Span | None]:
    from opentelemetry.trace import SpanKind

    attributes = _attributes(operation, "send", type)
    if id is not None:
        attributes["messaging.message.id"] = _name(id)
    begin = partial(
        found.start_as_current_span,
        f"{operation} {_name(type)}",
        kind=SpanKind.PRODUCER,
        attributes=attributes,
        record_exception=False,  # its message may contain a secret of the job
        set_status_on_exception=False,
    )
    with _Guarded(begin) as span:
        try:
            yield span
        except BaseException as error:
            _refused(span, error)
            raise


@_harmless
def _refused(span: Span | None, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    if span is not None:
        span.set_attribute("error.type", kind_of(error))
        span.set_status(Status(StatusCode.ERROR))


@_harmless
def sent(span: Span | None, jobs: Job | list[Job]) -> None:
    """Record the added job's id in a span, or the number of jobs."""
    if span is None:
        return
    if isinstance(jobs, list):
        span.set_attribute("messaging.batch.message_count", len(jobs))
    else:
        span.set_attribute("messaging.message.id", _name(jobs.id))


def processing(found: Tracer, job: Job) -> AbstractContextManager[Span | None]:
    """Return a span for a job's run; its parent is the span that added the job."""
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    attributes = _attributes("process", "process", job.type)
    attributes["messaging.message.id"] = _name(job.id)
    attributes["jobs_service.job.attempt"] = job.attempts
    carrier = job.trace_context
    begin = partial(
        found.start_as_current_span,
        f"process {_name(job.type)}",
        TraceContextTextMapPropagator().extract(carrier) if carrier else None,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    )
    return _Guarded(begin)


@_harmless
def ended(span: Span | None, outcome: str, error: JobError | None, *, failed: bool) -> None:
    """Record a run's end in its span.

    Args:
        span: of the run; None if there is none.
        outcome: the job's outcome.
        error: already redacted; None for none.
        failed: whether the error is a failure, and not an intended end by the handler.
    """
    from opentelemetry.trace import Status, StatusCode

    if span is None:
        return
    span.set_attribute("jobs_service.job.outcome", outcome)
    if error is None:
        return
    said = {"exception.type": error.type, "exception.message": error.message}
    span.add_event("exception", said | ({"exception.stacktrace": error.traceback} if error.traceback else {}))
    if failed:
        span.set_attribute("error.type", error.type)
        span.set_status(Status(StatusCode.ERROR, error.message))


def _attributes(operation: str, kind: str, type: JobType) -> dict[str, Any]:
    """Return the attributes of every span, by OpenTelemetry's conventions for messaging."""
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": _name(type),
    }


def _name(value: JobType | JobId) -> str:
    return names.shown(value).encode(errors="replace").decode()
