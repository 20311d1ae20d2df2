"""Server-sent events, read from bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service import json_types
from jobs_service.client import events as module
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
        (b"data: a\r\n\r\ndata: b\r\r", [ServerEvent("message", b"a", None)]),
        (b"retry: 5\nnothing\ndata\n\n", [ServerEvent("message", b"", None)]),
        (b"event: job\n\ndata: a\n\n", [ServerEvent("message", b"a", None)]),
        (b"data: not yet\n", []),
    ],
)
def test_a_stream_is_read_as_the_standard_says(stream: bytes, events: list[ServerEvent]) -> None:
    assert events_of(stream) == events


@given(st.lists(st.text(st.characters(codec="utf-8"))), st.sampled_from([b"\n", b"\r\n"]), st.data())
def test_events_are_the_same_however_their_bytes_come(texts: list[str], end: bytes, data: st.DataObject) -> None:
    stream = b"".join(
        b"event: job%sid: %d%sdata: %s%s%s" % (end, number, end, json_types.dumps(text), end, end)
        for number, text in enumerate(texts)
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    found = events_of(*chunks)
    assert [json_types.loads(event.data) for event in found] == texts
    assert [event.id for event in found] == [str(number) for number in range(len(texts))]


@given(st.lists(st.sampled_from([b"data: a", b"data: b", b"id: 1", b"\r", b"\n", b"\r\n", b"\n\n"])), st.data())
def test_an_end_of_line_may_come_in_two_parts(pieces: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    chunks = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert events_of(*chunks) == events_of(stream)


@pytest.mark.parametrize("line", [b"data: " + b"x" * 65_000, b"data: " + b"x" * 65_000 + b"\n"], ids=["line", "lines"])
def test_an_event_that_does_not_end_is_refused_before_it_fills_memory(line: bytes) -> None:
    with pytest.raises(ValueError, match="more than 16777216 bytes"):
        events_of(*[line] * 300)


def test_events_of_any_number_are_read_if_each_ends() -> None:
    assert len(events_of(*[b"data: " + b"x" * 65_000 + b"\n\n"] * 300)) == 300


def test_a_long_line_is_put_together_once_and_not_with_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    class Pattern:
        def split(self, text: bytes) -> list[bytes]:
            searched.append(len(text))
            return end_of_line.split(text)

    end_of_line = module._END_OF_LINE
    monkeypatch.setattr(module, "_END_OF_LINE", Pattern())
    [event] = events_of(b"data: ", *[b"x" * 100] * 500, b"\n\n")
    assert event.data == b"x" * 50_000
    assert sum(searched) == 50_008
