"""Server-sent events, read from bytes."""

from __future__ import annotations

import pytest

from jobs_service.client.events import EventParser, ServerEvent


def events_of(*chunks: bytes) -> list[ServerEvent]:
    """Return the events that some bytes are, read as they come."""
    parser = EventParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [ServerEvent("message", b"a", None)]),
        (b"event: job\nid: 7\ndata: a\ndata: b\n\n", [ServerEvent("job", b"a\nb", "7")]),
        (b"event:job\ndata:a\n\ndata: b\n\n", [ServerEvent("job", b"a", None), ServerEvent("message", b"b", None)]),
        (b"id: 1\ndata: a\n\ndata: b\n\n", [ServerEvent("message", b"a", "1"), ServerEvent("message", b"b", "1")]),
        (b": sign of life\n\ndata: a\n\n", [ServerEvent("message", b"a", None)]),
        (b"retry: 5\nnothing\ndata\n\n", [ServerEvent("message", b"", None)]),
        (b"event: job\n\ndata: a\n\n", [ServerEvent("message", b"a", None)]),
        (b"data: not yet\n", []),
    ],
)
def test_a_stream_is_read_as_a_server_writes_it(stream: bytes, events: list[ServerEvent]) -> None:
    assert events_of(stream) == events


@pytest.mark.parametrize("line", [b"data: " + b"x" * 65_000, b"data: " + b"x" * 65_000 + b"\n"], ids=["line", "lines"])
def test_an_event_that_does_not_end_is_refused_before_it_fills_memory(line: bytes) -> None:
    with pytest.raises(ValueError, match="more than 16777216 bytes"):
        events_of(*[line] * 300)
