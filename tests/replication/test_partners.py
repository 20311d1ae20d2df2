"""Whole replications with pouchdb-server: equal both ways, and beside its own replicator."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from tests.replication.partners import PouchServer
from tests.replication.server import Server
from tests.replication.server.databases import StoredDatabase
from tests.replication.support import Replication, attachment, contents, write_branch


def fill(database: StoredDatabase, count: int) -> None:
    """Write what both kinds of servers keep: PouchDB forgets the attachments of deleted revisions."""
    for number in range(count):
        for branch in range(1 + number % 3):
            fields: dict[str, Any] = {"number": number, "branch": branch}
            if branch == 2:
                fields["_deleted"] = True
            elif number % 10 == 0:
                kind = ("text/plain", "image/png")[number % 20 // 10]
                fields["_attachments"] = {"a ü": attachment(bytes(range(256)) * number, kind)}
            write_branch(database, f"doc/{number}+ü", 1 + branch * 7, branch, **fields)


async def pouch_replicates(pouch: PouchServer, source: str, target: str) -> dict[str, Any]:
    """Have PouchDB's own replicator run, and return what it says."""
    async with aiohttp.ClientSession() as session:
        asked = {"source": source, "target": target}
        async with session.post(f"{pouch.url}/_replicate", json=asked) as answer:
            return dict(json.loads(await answer.read()))


async def test_there_and_back_is_equal(pouch: PouchServer, small: Server) -> None:
    fill(small.database("db"), 120)
    there = await Replication(f"{small.url}/db", f"{pouch.url}/db", create_target=True).run()
    back = await Replication(f"{pouch.url}/db", f"{small.url}/back", create_target=True).run()
    assert contents(small.databases["back"]) == contents(small.databases["db"])
    assert there["docs_written"] == back["docs_written"] == there["missing_found"]
    for ends in (("db", pouch.url), ("back", pouch.url)):
        again = await Replication(f"{small.url}/{ends[0]}", f"{ends[1]}/db").run()
        assert again["docs_read"] in (0, there["docs_read"])


async def test_its_own_replicator_finds_nothing_left_to_copy_and_ours_neither(
    pouch: PouchServer, small: Server
) -> None:
    fill(small.database("db"), 40)
    ends = f"{pouch.url}/one", f"{pouch.url}/other"
    await Replication(f"{small.url}/db", ends[0], create_target=True).run()
    first = await Replication(*ends, create_target=True).run()
    theirs = await pouch_replicates(pouch, *ends)
    assert (theirs["ok"], theirs["docs_written"]) == (True, 0)
    write_branch(small.databases["db"], "new", 1, "x")
    await Replication(f"{small.url}/db", ends[0]).run()
    theirs = await pouch_replicates(pouch, *ends)
    assert theirs.get("docs_written") == 1, theirs
    ours = await Replication(*ends).run()
    # It goes on from its own checkpoint, and finds that the new one is there already.
    assert (ours["missing_checked"], ours["docs_written"]) == (first["missing_checked"] + 1, first["docs_written"])
