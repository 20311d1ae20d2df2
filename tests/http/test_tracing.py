"""A trace goes on over HTTP: from the header of a request, and from a JobsClient."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from jobs_service.client import JobsClient
from tests.http.support import listening

PARENT = f"00-{7:032x}-{8:016x}-01"
JOBS = "/v1/types/email/jobs"


async def test_a_job_belongs_to_the_span_that_the_header_names(spans: InMemorySpanExporter) -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        headers = {"traceparent": PARENT, "tracestate": "vendor=value"}
        await client.post(JOBS, json={"id": "a"}, headers=headers)
        lines = {**headers, "Content-Type": "application/x-ndjson"}
        await client.post(JOBS, content=b'{"id": "b"}\n{"id": "c"}\n', headers=lines)
        for id in "abc":
            context = (await jobs.get("email", id)).trace_context
            assert context["traceparent"].startswith(f"00-{7:032x}-")
            assert context["tracestate"] == "vendor=value"
        for nonsense in ("", "00-xyz", "ff" * 3000):
            answer = await client.post(JOBS, json={}, headers={"traceparent": nonsense})
            assert answer.status_code == 201
    assert {span.parent.span_id for span in spans.get_finished_spans()[:3] if span.parent} == {8}


async def test_a_client_sends_its_context(spans: InMemorySpanExporter) -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        async with JobsClient(str(client.base_url)) as remote:
            with trace.get_tracer("app").start_as_current_span("request") as span:
                await remote.add("email", "a")
        context = (await jobs.get("email", "a")).trace_context
        assert context["traceparent"].split("-")[1] == f"{span.get_span_context().trace_id:032x}"


def context_of(span: ReadableSpan | trace.Span) -> trace.SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


async def test_a_worker_over_http_continues_the_trace(spans: InMemorySpanExporter) -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        with trace.get_tracer("app").start_as_current_span("request") as request:
            await jobs.add("email", "a")
        await client.post(JOBS, json={"id": "b"}, headers={"traceparent": PARENT, "tracestate": "vendor=value"})
        [first, second] = (await client.post("/v1/types/email/accept", json={"limit": 2})).json()["jobs"]
        assert second["trace_context"]["tracestate"] == "vendor=value"
        parent = TraceContextTextMapPropagator().extract(first["trace_context"])
        worker = trace.get_tracer("worker")
        with worker.start_as_current_span("process email", parent, kind=trace.SpanKind.CONSUMER) as run:
            headers: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(headers)
            await client.post(JOBS, json={"id": "c"}, headers=headers)
            end = {"lock": first["lock"]}
            alive = (await client.post(f"{JOBS}/a/update", json=end, headers=headers)).json()
            done = (await client.post(f"{JOBS}/a/finish", json=end, headers=headers)).json()
        # Neither a sign of life nor the end makes it another job's trace.
        assert first["trace_context"] == alive["trace_context"] == done["trace_context"]
        ended = spans.get_finished_spans()
        sent = [span for span in ended if span.kind is trace.SpanKind.PRODUCER]
        added = {str((span.attributes or {})["messaging.message.id"]): span for span in sent}
        [ran] = [span for span in ended if span.name == "process email"]
        assert ran.parent is not None
        assert ran.parent.span_id == context_of(added["a"]).span_id
        assert added["c"].parent is not None
        assert added["c"].parent.span_id == context_of(run).span_id
        assert {context_of(each).trace_id for each in (request, added["a"], ran, added["c"])} == {
            context_of(request).trace_id
        }


async def test_a_job_that_was_added_in_no_span_has_no_context() -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await jobs.add("email", "a")
        [job] = (await client.post("/v1/types/email/accept", json={})).json()["jobs"]
        assert "trace_context" not in job


async def test_a_worker_with_a_client_of_ours_continues_the_trace(spans: InMemorySpanExporter) -> None:
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await client.post(JOBS, json={"id": "a"}, headers={"traceparent": PARENT, "tracestate": "vendor=value"})
        async with JobsClient(str(client.base_url)) as remote:
            job = await remote.accept("email")
            assert job is not None
            assert job.trace_context == (await jobs.get("email", "a")).trace_context
            parent = TraceContextTextMapPropagator().extract(job.trace_context)
            with trace.get_tracer("worker").start_as_current_span("process email", parent):
                await remote.add("email", "b")
                await job.finish()
        context = (await jobs.get("email", "b")).trace_context
        assert context["traceparent"].split("-")[1] == f"{7:032x}"
        assert context["tracestate"] == "vendor=value"


async def test_nothing_is_kept_where_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    async with listening() as (jobs, client):
        await jobs.set_type_timeout("email", 30)
        await client.post(JOBS, json={"id": "a"}, headers={"traceparent": PARENT})
        assert (await jobs.get("email", "a")).trace_context == {}
