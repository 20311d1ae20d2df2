"""A database of the project's own server, opened over HTTP, and what tests ask of it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from jobs_service.replication.contract import ChangesFeed, Document, RevisionRefusal
from jobs_service.replication.database import HttpDatabase
from jobs_service.replication.endpoint import parse_endpoint
from jobs_service.replication.http import HttpSettings, RateLimiter
from tests.replication.server import Oddities, Server

FAST = HttpSettings(first_wait=0.001, read_timeout=5)


@asynccontextmanager
async def database(
    oddities: Oddities | None = None, settings: HttpSettings = FAST, **more: Any
) -> AsyncIterator[tuple[Server, HttpDatabase]]:
    async with Server(oddities) as server:
        server.database("db")
        opened = HttpDatabase(parse_endpoint(f"{server.url}/db"), settings, RateLimiter(), **more)
        try:
            yield server, opened
        finally:
            await opened.close()


def revision(id: str, rev: str, *ancestors: str, **body: Any) -> dict[str, Any]:
    start, ids = int(rev.partition("-")[0]), [each.partition("-")[2] for each in (rev, *ancestors)]
    return {"_id": id, "_rev": rev, "_revisions": {"start": start, "ids": ids}, **body}


async def opened(db: HttpDatabase, id: str, revs: Sequence[str], ancestors: Sequence[str] = ()) -> list[Any]:
    """What comes, documents as their bodies with the bytes of the attachments that follow."""
    found: list[Any] = []
    async with aclosing(db.open_revs(id, revs, ancestors)) as documents:
        async for each in documents:
            if isinstance(each, RevisionRefusal):
                found.append(each)
            else:
                bytes_of = {}
                for attachment in each.attachments:
                    bytes_of[attachment.name] = b"".join([chunk async for chunk in attachment.chunks()])
                found.append((each.rev, each.body, bytes_of))
    return found


async def copy(
    source: HttpDatabase, target: HttpDatabase, id: str, revs: Sequence[str], ancestors: Sequence[str] = ()
) -> list[RevisionRefusal | None]:
    async with aclosing(source.open_revs(id, revs, ancestors)) as documents:
        return [await target.put(each) async for each in documents if isinstance(each, Document)]


async def rows_of(db: HttpDatabase, since: Any = 0, feed: ChangesFeed | None = None) -> list[Any]:
    async with aclosing(db.changes(since, feed or ChangesFeed())) as rows:
        return [row async for row in rows]
