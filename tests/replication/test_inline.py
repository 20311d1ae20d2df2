"""Small attachments inside of their documents: where they are whole, and what is left to be read alone."""

from __future__ import annotations

import base64
import gzip
import hashlib
from typing import Any

import pytest

from jobs_service.replication.contract import Document
from jobs_service.replication.revisions import MOST_INLINE, SmallAttachments, portions, small_attachments
from tests.replication.server import Fault, Server
from tests.replication.support import Replication, attachment, contents, write_branch

CONTENT = b"some bytes"
MD5 = "md5-" + base64.b64encode(hashlib.md5(CONTENT).digest()).decode()


def stub(**members: Any) -> dict[str, Any]:
    return {"stub": True, "length": len(CONTENT), "digest": MD5, "revpos": 1, **members}


def with_attachments(**attachments: Any) -> Document:
    return Document("x", "1-a", {"_id": "x", "_rev": "1-a", "_attachments": attachments})


@pytest.mark.parametrize(
    "attachments",
    [
        {"a": stub(length=MOST_INLINE + 1)},
        {"a": stub(length=MOST_INLINE), "b": stub()},
        {"a": stub(length=None)},
        {"a": {"follows": True, "length": 3}},
        {"a": stub(encoding="gzip", encoded_length=5)},
        {"a": "?"},
        [1],
    ],
    ids=["large", "large together", "no length", "no stub", "compressed", "no object", "a list"],
)
def test_what_is_not_known_to_be_small_is_not(attachments: Any) -> None:
    assert small_attachments(Document("x", "1-a", {"_attachments": attachments})) is None


@pytest.mark.parametrize(
    ("given", "told", "is_whole"),
    [
        ({"data": base64.b64encode(CONTENT).decode()}, {}, True),
        ({"data": base64.b64encode(CONTENT[:-1]).decode()}, {}, False),
        ({"data": base64.b64encode(b"other byte").decode()}, {}, False),
        ({"data": "?" + base64.b64encode(CONTENT).decode()}, {}, False),
        ({"data": "é"}, {}, False),
        ({"stub": True}, {}, False),
        ("", {}, False),
    ],
)
def test_bytes_must_be_those_of_the_stub(given: Any, told: dict[str, Any], is_whole: bool) -> None:
    described = small_attachments(with_attachments(a=stub(**told)))
    assert described is not None
    assert described.are_in(with_attachments(a=given)) == is_whole


def test_portions_are_bounded_in_bytes() -> None:
    sizes = {"a": 5, "b": 5, "c": 11, "d": 1}
    wanted = [(each, SmallAttachments({}, size)) for each, size in sizes.items()]
    assert [*portions(wanted, 10)] == [["a", "b"], ["c"], ["d"]]


class TestReplication:
    async def test_what_the_source_keeps_compressed_keeps_its_digest(self) -> None:
        async with Server() as source, Server() as target:
            target.database("db")
            rev = write_branch(
                source.database("db"), "doc", 1, "x", _attachments={"a": attachment(b"a" * 99, "text/plain")}
            )
            kept = source.databases["db"].documents["doc"].nodes[rev].attachments["a"]
            kept.data = gzip.compress(b"a" * 99, compresslevel=0)  # another level than the target's own
            await Replication(f"{source.url}/db", f"{target.url}/db").run()
            assert target.databases["db"].documents["doc"].nodes[rev].attachments["a"].digest == kept.digest

    @pytest.mark.parametrize(
        "fault",
        [
            Fault("attachments=true", status=404, times=99),
            Fault("attachments=true", replace=(b'"data": "AAAA', b'"data": "AAAB'), times=99),
            Fault("attachments=true", replace=(b'"ok"', b'"no"'), times=99),
        ],
        ids=["refused", "corrupted", "not there"],
    )
    async def test_what_does_not_come_inside_is_read_alone(self, fault: Fault) -> None:
        async with Server() as source, Server() as target:
            target.database("db")
            source.faults.append(fault)
            write_branch(source.database("db"), "doc", 2, "x", _attachments={"a": attachment(bytes(1000))})
            summary = await Replication(f"{source.url}/db", f"{target.url}/db").run()
            assert contents(target.databases["db"]) == contents(source.databases["db"])
            assert (fault.hits, summary["docs_read"], summary["docs_written"]) == (1, 1, 1)
