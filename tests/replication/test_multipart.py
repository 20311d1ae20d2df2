"""Multipart bodies, cut into pieces anywhere, and checked by aiohttp's reader where they are written."""

import asyncio
import email
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_service.replication.bodies import Part, Parts, content_type, related
from jobs_service.replication.contract import ProtocolError, TooLarge


async def _pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@dataclass
class Bytes:
    name: str
    data: bytes
    content_type: str = "text/plain"
    encoding: str | None = None
    digest: str | None = None
    revpos: int | None = 1
    length: int = -1
    encoded_length: int | None = None

    def __post_init__(self) -> None:
        self.length = len(self.data) if self.length < 0 else self.length

    @property
    def bytes_to_come(self) -> int:
        return self.length

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for start in range(0, len(self.data), 1000):
            yield self.data[start : start + 1000]


async def _read_all(data: bytes, boundary: str, size: int) -> list[Any]:
    async def contents(parts: Parts) -> list[Any]:
        found: list[Any] = []
        async for part in parts:
            if part.content_type[0].startswith("multipart/"):
                found.append(await contents(part.parts()))
            else:
                found.append(await part.read())
        return found

    return await contents(Parts(_pieces(data, size), boundary))


_NESTED = (
    b"--out\r\nContent-Type: application/json\r\n\r\n{}\r\n--out\r\n"
    b'Content-Type: multipart/related; boundary="in"\r\n\r\n'
    b"--in\r\nContent-Type: application/json\r\n\r\n{1}\r\n--in\r\n\r\n\r\n--in\r\nX: y\r\n\r\n\r\n--i\r\n--in--"
    b"\r\n--out--"
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
async def test_nested_parts_are_read_however_they_are_cut(size: int) -> None:
    assert await _read_all(_NESTED, "out", size) == [b"{}", [b"{1}", b"", b"\r\n--i"]]


async def test_parts_that_are_not_read_are_passed_over() -> None:
    seen = [part.headers.get("content-type", "")[:17] async for part in Parts(_pieces(_NESTED, 10), "out")]
    assert seen == ["application/json", "multipart/related"]


@pytest.mark.parametrize("length", range(0, len(_NESTED) - 2, 7))
async def test_a_body_that_is_cut_off_is_noticed(length: int) -> None:
    with pytest.raises(ProtocolError):
        await _read_all(_NESTED[:length], "out", 20)


async def test_a_part_may_not_be_larger_than_its_bound() -> None:
    async for part in Parts(_pieces(b"--b\r\n\r\n" + b"x" * 100 + b"\r\n--b--", 10), "b"):
        with pytest.raises(TooLarge, match="50"):
            await part.read(50)


async def test_what_is_written_is_read_by_others() -> None:
    attachments = [Bytes("a.txt", b"x" * 2500), Bytes('o"d', b""), Bytes("z", b"\x1f\x8b", encoding="gzip")]
    kind, length, chunks = related({"_id": "x"}, attachments)
    body = b"".join([chunk async for chunk in chunks])
    assert len(body) == length
    message = email.message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    found = [(part.get_filename(), part["Content-Encoding"], part.get_payload(decode=True)) for part in message.walk()]
    assert found[1:] == [
        (None, None, b'{"_id":"x"}'),
        ("a.txt", None, b"x" * 2500),
        ('o"d', None, b""),
        ("z", "gzip", b"\x1f\x8b"),
    ]


@pytest.mark.parametrize("said", [5, 15])
async def test_an_attachment_of_another_length_is_an_error(said: int) -> None:
    _, _, chunks = related({}, [Bytes("a", b"x" * 10, length=said)])
    with pytest.raises(ProtocolError, match="another length"):
        _ = [chunk async for chunk in chunks]


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 400))
def test_any_bytes_come_back_however_they_are_cut(contents: list[bytes], size: int) -> None:
    async def run() -> None:
        kind, _, chunks = related({"n": 1}, [Bytes(str(n), data) for n, data in enumerate(contents)])
        body = b"".join([chunk async for chunk in chunks])
        parts = Parts(_pieces(body, size), content_type(kind)[1]["boundary"])
        found: list[bytes] = []
        async for part in parts:
            assert isinstance(part, Part)
            found.append(await part.read())
        assert found == [b'{"n":1}', *contents]

    asyncio.run(run())


async def test_a_preamble_and_an_epilogue_are_passed_over() -> None:
    assert await _read_all(b"before\r\n--b\r\n\r\nx\r\n--b--\r\nafter", "b", 5) == [b"x"]


async def test_a_missing_boundary_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="boundary"):
        Parts(_pieces(b"", 1), "")


async def test_endless_headers_are_an_error() -> None:
    with pytest.raises(ProtocolError, match="headers"):
        await _read_all(b"--b\r\nX: " + b"x" * 200_000, "b", 1000)
