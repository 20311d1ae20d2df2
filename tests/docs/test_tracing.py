"""The page on tracing: its programs make the spans that it says."""

from __future__ import annotations

import re
from functools import partial

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.docs.pages import examples, read
from tests.docs.running import run
from tests.runner.support import running

PROGRAM, WORKER = examples("docs/tracing.md")
ATTRIBUTES = set(re.findall(r"`((?:messaging|error|jobs_service)\.[a-z_.]+)`", read("docs/tracing.md")))


async def test_the_programs_make_the_spans_that_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_SERVICE_STORE", "memory:")
    # Whoever has set a provider cannot set another one in the same process.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    set_it = partial(monkeypatch.setattr, trace, "_TRACER_PROVIDER")
    monkeypatch.setattr(trace, "set_tracer_provider", set_it)
    names = await run(PROGRAM)
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with names["jobs"] as jobs:
        await jobs.enqueue(names["email"], "ada", id="1")
        async with running(jobs):
            await jobs.wait("email", "1", "finished", timeout=60)
        await jobs.enqueue_many(names["email"], ["ada"])
        await run(WORKER, jobs=jobs)
        with pytest.raises(Exception, match="exists"):
            await jobs.add("email", "1")
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == [
        "enqueue email",
        "smtp",
        "process email",
        "enqueue email",
        "process email",
        "add email",
    ]
    enqueue, smtp, process, many, worker, _ = spans
    assert smtp.parent is not None
    assert process.context is not None
    assert smtp.parent.span_id == process.context.span_id
    assert len({span.context.trace_id for span in (enqueue, smtp, process) if span.context}) == 1
    assert len({span.context.trace_id for span in (many, worker) if span.context}) == 1
    assert {name for span in spans for name in span.attributes or {}} == ATTRIBUTES
