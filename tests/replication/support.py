"""What the tests of whole replications share: a run without a job, what is put into a database, what is compared."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from jobs_service.replication.checkpoints import ReplicationTally
from jobs_service.replication.database import HttpDatabase
from jobs_service.replication.endpoint import parse_endpoint
from jobs_service.replication.http import HttpSettings
from jobs_service.replication.job import Replicator
from jobs_service.replication.options import ReplicationOptions, replication_id
from tests.replication.server import Server
from tests.replication.server.databases import StoredDatabase

LIMIT = 30.0
"""Seconds after which a test that still waits has failed."""


async def nothing() -> None:
    """Hold a job that nobody else can take."""


@asynccontextmanager
async def databases(
    source: str, target: str, settings: HttpSettings | None = None
) -> AsyncIterator[tuple[HttpDatabase, HttpDatabase]]:
    """Open two databases over HTTP."""
    first, second = (HttpDatabase(parse_endpoint(each), settings) for each in (source, target))
    try:
        yield first, second
    finally:
        await first.close()
        await second.close()


class WatchedTally(ReplicationTally):
    """A tally that tells how far it has come."""

    _changed: asyncio.Event | None = None
    _copied = 0

    @property
    def copied(self) -> int:
        return self._copied

    @copied.setter
    def copied(self, number: int) -> None:
        self._copied = number
        if self._changed is not None:
            self._changed.set()

    async def reached(self, number: int) -> None:
        """Return when so many changes have been dealt with."""
        self._changed = asyncio.Event()
        while self._copied < number:
            self._changed.clear()
            await self._changed.wait()


class Replication:
    """One run of a replication without a job.

    Args:
        source, target: URLs.
        options: of the replication.
        hold: see Replicator.
        settings: of the requests.
    """

    def __init__(
        self,
        source: str,
        target: str,
        *,
        hold: Callable[[], Any] = nothing,
        settings: HttpSettings | None = None,
        **options: Any,
    ) -> None:
        self._settings = settings
        self.options = ReplicationOptions.from_data({"source": source, "target": target, **options})
        self.tally = WatchedTally(strict=self.options.strict)
        self.replicator: Replicator | None = None
        self._hold = hold

    async def run(self) -> dict[str, Any]:
        """Replicate, and return the summary."""
        asked = self.options
        assert isinstance(asked.source, str)
        assert isinstance(asked.target, str)

        def id_of(code: str | None) -> str:
            what: dict[str, Any] = {"filter": code, "query_params": asked.query_params, "doc_ids": asked.doc_ids}
            return replication_id("tests", asked.source, asked.target, selector=asked.selector, **what)

        opened = databases(asked.source, asked.target, self._settings)
        async with opened as (source, target), asyncio.timeout(LIMIT):
            self.replicator = Replicator(source, target, asked, id_of, self.tally, lambda _: self._hold())
            return await self.replicator.run()


def rev(generation: int, seed: object) -> str:
    """Return a revision that is always the same."""
    return f"{generation}-{hashlib.md5(str(seed).encode()).hexdigest()}"


def write_branch(database: StoredDatabase, id: str, length: int, seed: object, **fields: Any) -> str:
    """Write a leaf revision with a history of its own from the first revision on, and return it."""
    revs = [rev(number, f"{id} {seed} {number}" if number > 1 else id) for number in range(length, 0, -1)]
    names = [each.partition("-")[2] for each in revs]
    return database.write({"_id": id, "_revisions": {"start": length, "ids": names}, **fields}, False)


def attachment(data: bytes, kind: str = "application/octet-stream") -> dict[str, str]:
    """Return an attachment as it is written inline."""
    return {"content_type": kind, "data": base64.b64encode(data).decode()}


IDS = (
    "plain",
    "a/b",
    "a+b",
    "100%",
    "Ångström 日本",
    "with space",
    "q?x=1&y#z",
    "_design/app",
    "_design/a+b/c",
    ":'()!",
)
"""Ids of which each needs care in an address."""


def fill(database: StoredDatabase, count: int, seed: int = 0, *, attachments: int = 0) -> None:
    """Write documents of all kinds: conflicts, deletions, long histories, ids that need care, attachments."""
    choices = random.Random(seed)
    for number in range(count):
        id = f"{choices.choice(IDS)} {number}"
        body: dict[str, Any] = {"number": number, "text": "é" * choices.randrange(60)}
        if number < attachments:
            size = choices.choice((0, 1, 100, 10_000, 100_000))
            kind = choices.choice(("text/plain", "image/png"))
            body["_attachments"] = {
                name: attachment(choices.randbytes(size), kind) for name in ("one.bin", "zwei ü.txt")[: 1 + number % 2]
            }
        for branch in range(choices.choice((1, 1, 1, 2, 3))):
            deleted = {"_deleted": True} if choices.random() < 0.15 else {}
            write_branch(database, id, choices.choice((1, 2, 3, 40)), branch, **body, **deleted)


def contents(database: StoredDatabase, keep: Callable[[str], bool] = lambda id: True) -> dict[str, Any]:
    """Return everything that a replication has to bring over: leaf revisions, their ancestors, decoded attachments."""
    return {
        id: {
            leaf: (
                document.history(leaf),
                document.nodes[leaf].body,
                document.nodes[leaf].deleted,
                {
                    name: (each.content_type, each.content, each.revpos)
                    for name, each in document.nodes[leaf].attachments.items()
                },
            )
            for leaf in document.leaves()
        }
        for id, document in database.documents.items()
        if keep(id)
    }


def asked(server: Server, what: str) -> list[str]:
    """Return the requests to a server that have a text in them."""
    return [each for each in server.requests if what in each]


def place(seq: Any) -> int:
    """Return how far a sequence is: the number itself, or the one that an opaque one begins with."""
    return int(str(seq).partition("-")[0])
