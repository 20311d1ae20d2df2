"""Revisions: how many one address asks for, and attachments that are what their document says."""

import base64
import hashlib
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service.replication.contract import ProtocolError
from jobs_service.replication.revisions import StreamedAttachment, of_json, queries, revisions_query

_DATA = [b"first", b"", b"second", b"third"]


@given(st.integers(1, 60), st.integers(0, 60), st.integers(150, 3000))
def test_addresses_stay_within_their_bound(count: int, known: int, most: int) -> None:
    revs = [f"{number}-{number:032x}" for number in range(1, count + 1)]
    ancestors = [f"{number}-{number:032x}" for number in range(100, 100 + known)]
    fixed = len(urlencode(revisions_query((), ("",))))
    groups = queries(revs, ancestors, most - fixed)
    assert [rev for group, _ in groups for rev in group] == revs
    for group, some in groups:
        assert len(group) == 1 or len(urlencode(revisions_query(group, some))) <= most
        assert list(some) == ancestors[: len(some)]


def _attachment(data: list[bytes], length: int, digest: str | None) -> StreamedAttachment:
    async def source() -> AsyncGenerator[bytes, None]:
        for chunk in data:
            yield chunk

    return StreamedAttachment("a", "x/y", length, None, None, digest, 1, source)


def _digest(data: bytes) -> str:
    return "md5-" + base64.b64encode(hashlib.md5(data).digest()).decode()


@pytest.mark.parametrize("digest", [None, "sha-other", _digest(b"".join(_DATA))])
async def test_bytes_that_are_right_pass(digest: str | None) -> None:
    whole = b"".join(_DATA)
    assert b"".join([chunk async for chunk in _attachment(_DATA, len(whole), digest).chunks()]) == whole


@pytest.mark.parametrize(("length", "digest"), [(15, None), (17, None), (16, _digest(b"other"))])
async def test_the_last_bytes_of_wrong_ones_never_pass(length: int, digest: str | None) -> None:
    passed: list[bytes] = []

    async def take() -> None:
        async for chunk in _attachment(_DATA, length, digest).chunks():
            passed.append(chunk)

    with pytest.raises(ProtocolError, match="did not come as its document says"):
        await take()
    assert len(b"".join(passed)) < length


@pytest.mark.parametrize(
    "answers",
    [
        {},
        [7],
        [{"ok": 7}],
        [{"ok": {"_id": "y", "_rev": "1-a"}}],
        [{"ok": {"_id": "x"}}],
        [{"ok": {"_id": "x", "_rev": "1-a", "_attachments": {"a": {"stub": True}}}}],
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_is_an_error(answers: Any) -> None:
    async def fetch(name: str, rev: str, encoding: str | None) -> AsyncGenerator[bytes, None]:
        yield b""

    with pytest.raises(ProtocolError):
        of_json("x", answers, (), fetch)
