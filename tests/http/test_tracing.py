"""A trace goes on over HTTP: from the header of a request, and from a JobsClient."""

from __future__ import annotations

from opentelemetry import trace
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
