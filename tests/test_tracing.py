"""Traces: from the program that adds a job to each of its runs, in whatever process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from structlog.testing import capture_logs

from jobs_service import (
    Discard,
    Job,
    JobExists,
    JobsService,
    JobTransaction,
    NewJob,
    Retry,
    RunningJob,
    Snooze,
    run_data,
    tracing,
)
from jobs_service.runner.run import NO_END
from tests.runner.support import running
from tests.service.support import eventually

SECRET = "S3cret-4111-1111"


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """Return the spans of a name that have ended, in the order of their ends."""
    return [span for span in spans.get_finished_spans() if span.name == name]


def context_of(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


async def finished(jobs: JobsService, *ids: str, type: str = "email") -> None:
    """Run the handlers until these jobs have finished."""
    async with running(jobs):
        for id in ids:
            await jobs.wait(type, id, "finished", timeout=30)


@pytest.mark.parametrize("scheme", ["memory:", "lmdb:"])
async def test_a_run_is_the_child_of_the_span_that_has_added_its_job(
    spans: InMemorySpanExporter, scheme: str, tmp_path: Path
) -> None:
    jobs = JobsService(scheme if scheme == "memory:" else f"lmdb:{tmp_path}")
    inside: list[Any] = []

    @jobs.handler("email")
    async def email(job: RunningJob) -> None:
        inside.append(trace.get_current_span().get_span_context())

    @jobs.handler("plain")
    def plain() -> None:
        inside.append(trace.get_current_span().get_span_context())

    async with jobs:
        with trace.get_tracer("app").start_as_current_span("request") as request:
            await jobs.enqueue(email, id="a")
        await jobs.enqueue(plain, id="b")
        async with running(jobs):
            await jobs.wait("email", "a", "finished", timeout=30)
            await jobs.wait("plain", "b", "finished", timeout=30)
    [sent] = named(spans, "enqueue email")
    [run] = named(spans, "process email")
    assert sent.parent == request.get_span_context()
    assert run.parent is not None
    assert run.parent.span_id == context_of(sent).span_id
    assert context_of(run).trace_id == context_of(sent).trace_id == request.get_span_context().trace_id
    assert (sent.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    common = {"messaging.system": "jobs_service", "messaging.destination.name": "email", "messaging.message.id": "a"}
    assert dict(sent.attributes or {}) == {
        **common,
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
    }
    assert dict(run.attributes or {}) == {
        **common,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "jobs_service.job.attempt": 1,
        "jobs_service.job.outcome": "succeeded",
    }
    assert run.status.status_code is StatusCode.UNSET
    [in_thread] = named(spans, "process plain")
    assert {each.span_id for each in inside} == {context_of(run).span_id, context_of(in_thread).span_id}


async def test_the_context_is_outside_of_the_data_and_workers_of_ones_own_find_it(spans: InMemorySpanExporter) -> None:
    async with JobsService("memory:", supervise=False) as jobs:
        await jobs.set_type_timeout("email", 30)
        with trace.get_tracer("app").start_as_current_span("request"):
            await jobs.add("email", "a", {"to": "Ada"})
        job = await jobs.accept("email")
        assert job is not None
        assert job.data == {"to": "Ada"}
        assert (job.max_attempts, job.time_limit) == (None, None)
        [sent] = named(spans, "add email")
        context = context_of(sent)
        assert [*job.trace_context] == ["traceparent"]
        expected = f"00-{context.trace_id:032x}-{context.span_id:016x}-"
        assert job.trace_context["traceparent"].startswith(expected)
        assert (await job.finish()).trace_context == job.trace_context


async def test_limits_and_context_do_not_disturb_each_other(spans: InMemorySpanExporter) -> None:
    jobs = JobsService("memory:", supervise=False)

    @jobs.handler("email")
    async def email() -> None: ...

    async with jobs:
        job = await jobs.enqueue(email, id="a", max_attempts=3, time_limit=7)
        assert (job.max_attempts, job.time_limit) == (3, 7)
        first = job.trace_context
        running_job = await jobs.accept("email")
        assert running_job is not None
        await running_job.finish()
        again = await jobs.resubmit("email", "a")
        assert (again.max_attempts, again.time_limit) == (3, 7)
        assert again.trace_context
        assert again.trace_context != first
        [span] = named(spans, "resubmit email")
        assert f"{context_of(span).span_id:016x}" in again.trace_context["traceparent"]


async def test_every_way_to_add_jobs_carries_the_context(spans: InMemorySpanExporter) -> None:
    jobs = JobsService("memory:", supervise=False)

    @jobs.handler("email")
    async def email() -> None: ...

    async with jobs:
        await jobs.set_type_timeout("email", 30)
        many = await jobs.add_many("email", [NewJob("1"), NewJob("2")])
        more = await jobs.enqueue_many(email, [None, None, None])

        async def work(tx: JobTransaction) -> list[Job]:
            return [await tx.add("email", "3"), await tx.enqueue(email, id="4")]

        with trace.get_tracer("app").start_as_current_span("request") as request:
            within = await jobs.transact(work)
    [added], [enqueued] = named(spans, "add email"), named(spans, "enqueue email")
    assert (added.attributes or {})["messaging.batch.message_count"] == 2
    assert (enqueued.attributes or {})["messaging.batch.message_count"] == 3
    for jobs_of_it, context in (
        (many, context_of(added)),
        (more, context_of(enqueued)),
        (within, request.get_span_context()),
    ):
        assert {job.trace_context["traceparent"].split("-")[2] for job in jobs_of_it} == {f"{context.span_id:016x}"}


async def test_tracestate_is_carried(spans: InMemorySpanExporter) -> None:
    carrier = {"traceparent": f"00-{7:032x}-{8:016x}-01", "tracestate": "vendor=value"}
    context = TraceContextTextMapPropagator().extract(carrier)
    async with JobsService("memory:", supervise=False) as jobs:
        await jobs.set_type_timeout("email", 30)
        token = attach(context)
        try:
            job = await jobs.add("email", "a")
        finally:
            detach(token)
        assert job.trace_context["tracestate"] == "vendor=value"
        assert job.trace_context["traceparent"].startswith(f"00-{7:032x}-")


async def test_ends_are_told_and_errors_without_what_is_secret(spans: InMemorySpanExporter) -> None:
    jobs = JobsService("memory:")

    @jobs.handler("email", max_attempts=2, redact=["card"], backoff=1000)
    async def email(job: RunningJob, args: dict[str, str]) -> None:
        match args["how"]:
            case "discard":
                raise Discard(f"no {args['card']}")
            case "crash":
                raise ValueError(f"no {args['card']!r}")
            case "retry":
                raise Retry(1000)
            case "snooze":
                raise Snooze(1000)
            case "itself":
                await job.finish()

    hows = ["discard", "crash", "retry", "snooze", "itself", "well"]
    async with jobs:
        for how in hows:
            await jobs.enqueue(email, {"how": how, "card": SECRET}, id=how)
        async with running(jobs):
            for how in ("discard", "itself", "well"):
                await jobs.wait("email", how, "finished", timeout=30)

            async def all_told() -> bool:
                return len(named(spans, "process email")) == len(hows)

            await eventually(all_told)
    runs = {(span.attributes or {})["messaging.message.id"]: span for span in named(spans, "process email")}
    assert {how: (runs[how].attributes or {})["jobs_service.job.outcome"] for how in hows} == {
        "discard": "failed",
        "crash": "retried",
        "retry": "retried",
        "snooze": "given back",
        "itself": "ended by its handler",
        "well": "succeeded",
    }
    failed = {how for how in hows if runs[how].status.status_code is StatusCode.ERROR}
    assert failed == {"discard", "crash"}
    assert (runs["crash"].attributes or {})["error.type"] == "ValueError"
    assert runs["crash"].status.description == "no '[redacted]'"
    [event] = runs["crash"].events
    assert event.name == "exception"
    assert "ValueError" in str((event.attributes or {})["exception.stacktrace"])
    for span in spans.get_finished_spans():
        assert SECRET not in span.to_json()
    assert NO_END.outcome(False) == "taken over"


async def test_an_addition_that_is_refused_is_an_error_without_words(spans: InMemorySpanExporter) -> None:
    async with JobsService("memory:", supervise=False) as jobs:
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a")
        with pytest.raises(JobExists):
            await jobs.add("email", "a")
    span = named(spans, "add email")[1]
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None
    assert (span.attributes or {})["error.type"] == "JobExists"
    assert not span.events


@pytest.mark.parametrize(
    ("part", "moment"),
    [
        (SimpleSpanProcessor, "on_start"),
        (SimpleSpanProcessor, "on_end"),
        (SdkTracer, "start_as_current_span"),
        (TracerProvider, "get_tracer"),
        (SdkSpan, "set_attribute"),
        (SdkSpan, "set_status"),
        (SdkSpan, "get_span_context"),
    ],
)
async def test_tracing_that_fails_costs_no_job_its_addition_or_its_end(
    spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, part: type, moment: str
) -> None:
    jobs = JobsService("memory:")
    runs: list[int] = []

    @jobs.handler("email", timeout=1)
    async def email(job: RunningJob) -> int:
        runs.append(job.attempts)
        return 7

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a part of the application's tracing has a bug")

    async with jobs:
        monkeypatch.setattr(part, moment, broken)
        with capture_logs() as events:
            await jobs.enqueue(email, id="a")
            with pytest.raises(JobExists):
                await jobs.add("email", "a")
            async with running(jobs):
                assert await jobs.result(email, "a", timeout=30) == 7
    assert runs == [1]
    assert {event["event"] for event in events if event["log_level"] == "error"} == {"tracing_failed"}
    if part is not SdkSpan:
        assert spans.get_finished_spans() == ()


async def test_attempts_are_siblings(spans: InMemorySpanExporter) -> None:
    jobs = JobsService("memory:")

    @jobs.handler("email", backoff=0, jitter=0)
    async def email(job: RunningJob) -> None:
        if job.attempts < 3:
            raise ValueError

    async with jobs:
        await jobs.enqueue(email, id="a")
        await finished(jobs, "a")
    [sent] = named(spans, "enqueue email")
    runs = named(spans, "process email")
    assert [(span.attributes or {})["jobs_service.job.attempt"] for span in runs] == [1, 2, 3]
    assert {span.parent.span_id for span in runs if span.parent} == {context_of(sent).span_id}


PRODUCER = """
import asyncio, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from jobs_service import JobsService

trace.set_tracer_provider(TracerProvider())


async def main():
    async with JobsService(sys.argv[1], supervise=False) as jobs:
        with trace.get_tracer("app").start_as_current_span("request") as span:
            await jobs.set_type_timeout("email", 30)
            await jobs.add("email", "a")
            print(f"{span.get_span_context().trace_id:032x}")


asyncio.run(main())
"""


async def test_a_trace_goes_on_in_another_process(spans: InMemorySpanExporter, tmp_path: Path) -> None:
    address = f"lmdb:{tmp_path}"
    command = [sys.executable, "-c", PRODUCER, address]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    jobs = JobsService(address)

    @jobs.handler("email")
    async def email() -> None: ...

    async with jobs:
        await finished(jobs, "a")
    [run] = named(spans, "process email")
    assert f"{context_of(run).trace_id:032x}" == done.stdout.strip()


UNTRACED = """
import asyncio, sys
from jobs_service import JobsService

jobs = JobsService("memory:")


@jobs.handler("email")
async def email():
    pass


async def main():
    async with jobs:
        job = await jobs.enqueue(email, id="a")
        assert job.trace_context == {}, job.trace_context
        task = asyncio.create_task(jobs.run())
        await jobs.wait("email", "a", "finished", timeout=30)
        task.cancel()
        await asyncio.wait([task])
    print([name for name in sys.modules if name.startswith("opentelemetry")])


asyncio.run(main())
"""


def test_whoever_traces_nothing_loads_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", UNTRACED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


async def test_without_a_provider_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert tracing.tracer() is None
    async with JobsService("memory:", supervise=False) as jobs:
        await jobs.set_type_timeout("email", 30)
        assert (await jobs.add("email", "a")).trace_context == {}
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", trace.NoOpTracerProvider())
    assert tracing.tracer() is None


@pytest.mark.parametrize("limits", [b"[null,null,7,8]", b"[null,null,{},[1]]", b'{"a":1,"b":2,"c":3,"d":4}', b'"abcd"'])
def test_a_context_that_is_none_is_left_out(limits: bytes) -> None:
    packed = run_data.with_part(run_data.of_values(0, 0, (), None), run_data.LIMITS, limits)
    assert tracing.carrier_of(packed) == {}
