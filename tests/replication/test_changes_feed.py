"""Feeds of changes: what is asked, and rows however their bytes are cut."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobs_service.replication.contract import (
    Change,
    ChangesFeed,
    EndOfChanges,
    FeedHeartbeat,
    ProtocolError,
    RequestFailed,
)
from jobs_service.replication.database import feed_request, lines_of, page_of, rows_of

_ROWS = (
    b'{"seq":"1-a","id":"x","changes":[{"rev":"1-a"},{"rev":"1-b"}]}\n\n'
    b'{"seq":null,"id":"\xc3\xa4","changes":[{"rev":"2-a"}],"deleted":true}\n'
)


async def _pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
async def test_rows_are_read_however_they_are_cut(size: int) -> None:
    found: list[Any] = [row async for row in lines_of(_pieces(_ROWS + b'{"last_seq":"2-b","pending":0}\n', size))]
    assert [type(row) for row in found] == [Change, FeedHeartbeat, Change, EndOfChanges]
    assert found[0].revs == ("1-a", "1-b")
    assert (found[2].id, found[2].seq, found[2].deleted) == ("\u00e4", None, True)
    assert found[3] == EndOfChanges("2-b", 0)


@pytest.mark.parametrize("end", [b"", b'{"seq":3,"id":"y"', b"\n"])
async def test_a_feed_without_an_end_was_cut_off(end: bytes) -> None:
    with pytest.raises(RequestFailed, match="cut off"):
        _ = [row async for row in lines_of(_pieces(_ROWS + end, 10))]


@pytest.mark.parametrize(
    "line", [b'{"error":"gone","reason":"shard"}', b"[]", b'{"seq":1,"id":"x","changes":[{}]}', b"x"]
)
async def test_a_line_that_is_no_row_is_an_error(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        _ = [row async for row in lines_of(_pieces(line + b"\n", 10))]


_FEED = b'{"results":[\n\n{"seq":"1-a","id":"x]","changes":[]},\n{"seq":"2-b","id":"y","changes":[]}\n%s'


@pytest.mark.parametrize("end", [b'],\n"last_seq":"2-b","pending":3}\n', b']\n,"last_seq":"2-b","pending":3}'])
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_rows_of_a_normal_feed_come_before_its_end_is_known(size: int, end: bytes) -> None:
    found: list[Any] = [row async for row in rows_of(_pieces(_FEED % end, size))]
    assert [type(row) for row in found] == [FeedHeartbeat, Change, Change, EndOfChanges]
    assert [row.id for row in found[1:3]] == ["x]", "y"]
    assert found[3] == EndOfChanges("2-b", 3)


@pytest.mark.parametrize("end", [b"", b"],\n", b'],\n"last_seq":', b'{"seq":3,"id":"z"'])
async def test_a_normal_feed_without_an_end_was_cut_off(end: bytes) -> None:
    with pytest.raises(RequestFailed, match="cut off"):
        _ = [row async for row in rows_of(_pieces(_FEED % end, 10))]


async def test_a_normal_feed_may_be_one_line() -> None:
    text = b'{"results":[{"seq":1,"id":"x","changes":[]}],"last_seq":1}'
    for end in (b"", b"\n"):
        assert [type(row) async for row in rows_of(_pieces(text + end, 10))] == [Change, EndOfChanges]


def test_a_page_that_lacks_its_end_is_an_error() -> None:
    assert page_of(b'{"results":[],"last_seq":0}') == ([], EndOfChanges(0, None))
    for body in (b'{"results":[]}', b"[]", b'{"last_seq":1}', b'{"results":[{"id":"x"}],"last_seq":1}'):
        with pytest.raises(ProtocolError):
            page_of(body)


def test_a_revision_whose_body_has_gone_is_not_asked_for() -> None:
    row = {"seq": 1, "id": "x", "removed": True, "changes": [{"rev": "1-a"}, {"rev": "1-b"}]}
    [change], _ = page_of(json.dumps({"results": [row], "last_seq": 1}).encode())
    assert change.revs == ("1-b",)


@pytest.mark.parametrize(("since", "text"), [(0, "0"), ("3-g1A", "3-g1A"), ([1, "x"], '[1,"x"]'), ("now", "now")])
def test_sequences_go_back_as_they_came(since: Any, text: str) -> None:
    assert ("since", text) in feed_request(since, ChangesFeed(), None)[1]


def test_parameters_of_a_filter_are_texts_and_those_of_a_view_json() -> None:
    parameters = {"a": "x", "b": 1, "c": True, "feed": "longpoll"}
    query = feed_request(0, ChangesFeed(filter="d/f", query_params=parameters), None)[1]
    assert query[-3:] == [("a", "x"), ("b", "1"), ("c", "true")]
    assert dict(query)["feed"] == "normal"
    query = feed_request(0, ChangesFeed(filter="_view", view="d/v", query_params={"key": "x", "n": "x"}), None)[1]
    assert query[-3:] == [("view", "d/v"), ("key", '"x"'), ("n", "x")]
