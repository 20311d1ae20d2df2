"""Documents are written together, divided where they are refused, and left out alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobs_service.replication.checkpoints import ReplicationTally
from jobs_service.replication.contract import Document, ReplicationError, RevisionRefusal
from jobs_service.replication.database import HttpDatabase
from jobs_service.replication.endpoint import parse_endpoint
from jobs_service.replication.http import HttpSettings
from jobs_service.replication.pipeline import DocumentWriter, is_for_good
from tests.replication.server import Fault, Oddities, Server
from tests.replication.support import rev


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server(Oddities(max_request=5000)) as running:
        running.database("db")
        yield running


@pytest.fixture
async def target(server: Server) -> AsyncIterator[HttpDatabase]:
    database = HttpDatabase(parse_endpoint(f"{server.url}/db"), HttpSettings(retries=0))
    yield database
    await database.close()


def document(id: str, **fields: Any) -> Document:
    return Document(id, rev(1, id), {"_id": id, "_rev": rev(1, id), **fields})


@pytest.mark.parametrize("status", [400, 413])
async def test_a_batch_that_is_refused_is_divided_until_one_is_left(
    server: Server, target: HttpDatabase, status: int
) -> None:
    # The whole batch, the half with the bad one, and so on down to it.
    server.faults.append(Fault("POST /db/_bulk_docs", status=status, times=1))
    tally = ReplicationTally()
    writer = DocumentWriter(target, tally)
    for number in range(8):
        await writer.add(document(f"{number}"))
    await writer.add(document("large", text="x" * 6000))
    await writer.flush()
    assert sorted(server.databases["db"].documents) == [f"{number}" for number in range(8)]
    assert [each["id"] for each in tally.skipped_data()] == ["large"]
    assert (tally.statistics.docs_written, tally.statistics.doc_write_failures) == (8, 1)


async def test_one_that_was_refused_on_the_way_is_written_after_all(server: Server, target: HttpDatabase) -> None:
    server.faults.append(Fault("PUT /db/_design", status=403))
    tally = ReplicationTally()
    await DocumentWriter(target, tally).put(document("_design/app"))
    assert list(server.databases["db"].documents) == ["_design/app"]
    assert tally.skipped_data() == []


async def test_what_is_refused_for_no_good_reason_is_an_error(server: Server, target: HttpDatabase) -> None:
    server.faults.append(Fault("PUT /db/_design", status=409, times=2))
    with pytest.raises(ReplicationError) as failed:
        await DocumentWriter(target, ReplicationTally()).put(document("_design/app"))
    assert failed.value.transient


@pytest.mark.parametrize(
    ("refusal", "whether"),
    [
        (RevisionRefusal("a", "1-a", "forbidden"), True),
        (RevisionRefusal("a", "1-a", "unauthorized"), True),
        (RevisionRefusal("a", "1-a", "whatever", status=413), True),
        (RevisionRefusal("a", "1-a", "illegal_docid"), True),
        (RevisionRefusal("a", "1-a", "bad_request", "Attachment name '_x' starts with ...", 400), True),
        (RevisionRefusal("a", "1-a", "bad_request", "something else", 400), False),
        (RevisionRefusal("a", "1-a", "internal_server_error"), False),
        (RevisionRefusal("a", "1-a", "conflict", status=409), False),
    ],
)
def test_what_is_refused_for_good(refusal: RevisionRefusal, whether: bool) -> None:
    assert is_for_good(refusal) is whether
