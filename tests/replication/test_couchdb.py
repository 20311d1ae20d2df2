"""Whole replications with CouchDB, where COUCHDB_URL names one: equal both ways, and beside its own replicator."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import aiohttp

from jobs_service.replication.endpoint import parse_endpoint
from tests.replication.partners import basic
from tests.replication.server import Server
from tests.replication.support import Replication, asked, contents, fill, write_branch


async def _couchdb_replicates(source: str, target: str) -> dict[str, Any]:
    """Have CouchDB's own replicator run, and return what it says."""
    endpoint = parse_endpoint(os.environ["COUCHDB_URL"])
    password = endpoint.password.reveal() if endpoint.password else ""
    headers = {"Authorization": basic(endpoint.user or "", password)}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{endpoint.url}/_replicate", json={"source": source, "target": target}) as answer,
    ):
        return dict(json.loads(await answer.read()))


async def test_there_and_back_is_equal(couch: str, small: Server) -> None:
    fill(small.database("db"), 120, attachments=20)
    there = await Replication(f"{small.url}/db", couch).run()
    back = await Replication(couch, f"{small.url}/back", create_target=True).run()
    assert contents(small.databases["back"]) == contents(small.databases["db"])
    assert there["docs_written"] == back["docs_written"] == there["missing_found"]
    again = await Replication(f"{small.url}/db", couch).run()
    assert again["docs_read"] in (0, there["docs_read"])


async def test_each_goes_on_from_its_own_checkpoint_beside_the_others(couch: str, small: Server) -> None:
    fill(small.database("db"), 60, attachments=6)
    theirs = await _couchdb_replicates(f"{small.url}/db", couch)
    assert theirs["ok"], theirs
    ours = await Replication(f"{small.url}/db", couch).run()
    assert (ours["missing_found"], ours["docs_written"]) == (0, 0)
    write_branch(small.databases["db"], "new", 3, "x")
    small.requests.clear()
    ours = await Replication(f"{small.url}/db", couch).run()
    assert (ours["missing_found"], ours["docs_written"]) == (1, 1)
    again = await _couchdb_replicates(f"{small.url}/db", couch)
    assert again["ok"], again
    counters = ("missing_checked", "missing_found", "docs_written")
    before, after = ([each["history"][0][name] for name in counters] for each in (theirs, again))
    assert after == [before[0] + 1, *before[1:]]
    feeds = asked(small, "_changes?")
    assert len(feeds) > 1
    assert not [each for each in feeds if re.search("since=(%22)?0(%22)?(&|$)", each)]
