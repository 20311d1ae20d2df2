"""The project's own server, asked by hand: what the pipeline's tests rely on."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.replication.server import Fault, Oddities, Server

_JSON = {"Content-Type": "application/json"}


async def _ask(server: Server, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body)
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, server.url + path, data=data, headers=_JSON) as answer,
    ):
        return answer.status, json.loads(await answer.read())


async def test_a_document_is_created_changed_and_deleted() -> None:
    async with Server() as server:
        assert (await _ask(server, "PUT", "/a"))[0] == 201
        assert (await _ask(server, "PUT", "/a"))[1]["error"] == "file_exists"
        _, first = await _ask(server, "PUT", "/a/x%2Fy", {"n": 1})
        assert (await _ask(server, "PUT", "/a/x%2Fy", {"n": 2}))[0] == 409
        _, second = await _ask(server, "PUT", "/a/x%2Fy", {"n": 2, "_rev": first["rev"]})
        assert (await _ask(server, "GET", "/a/x%2Fy?revs=true"))[1] == {
            "_id": "x/y",
            "_rev": second["rev"],
            "n": 2,
            "_revisions": {"start": 2, "ids": [second["rev"][2:], first["rev"][2:]]},
        }
        assert (await _ask(server, "DELETE", f"/a/x%2Fy?rev={second['rev']}"))[0] == 200
        assert (await _ask(server, "GET", "/a/x%2Fy"))[1]["reason"] == "deleted"


async def test_revisions_from_elsewhere_make_conflicts_and_the_longer_wins() -> None:
    async with Server() as server:
        server.database("a")
        docs = [
            {"_id": "x", "_rev": "2-b", "_revisions": {"start": 2, "ids": ["b", "a"]}, "v": 2},
            {"_id": "x", "_rev": "1-c", "_revisions": {"start": 1, "ids": ["c"]}, "v": 1},
        ]
        assert await _ask(server, "POST", "/a/_bulk_docs", {"new_edits": False, "docs": docs}) == (201, [])
        assert (await _ask(server, "GET", "/a/x?conflicts=true"))[1]["_conflicts"] == ["1-c"]
        _, diff = await _ask(server, "POST", "/a/_revs_diff", {"x": ["1-a", "3-d"], "y": ["1-a"]})
        assert diff == {"x": {"missing": ["3-d"], "possible_ancestors": ["2-b", "1-c"]}, "y": {"missing": ["1-a"]}}
        _, changes = await _ask(server, "GET", "/a/_changes?style=all_docs")
        assert [row["changes"] for row in changes["results"]] == [[{"rev": "2-b"}, {"rev": "1-c"}]]
        _, answers = await _ask(server, "GET", '/a/x?open_revs=["1-a","9-z"]&latest=true')
        assert [answer.get("missing") or answer["ok"]["_rev"] for answer in answers] == ["2-b", "9-z"]


async def test_a_continuous_feed_goes_on_and_ends_with_the_server() -> None:
    async with aiohttp.ClientSession() as session:
        async with Server() as server:
            database = server.database("a")
            database.write({"_id": "x"}, new_edits=True)
            answer = await session.get(f"{server.url}/a/_changes?feed=continuous&heartbeat=20")
            assert json.loads(await answer.content.readline())["id"] == "x"
            assert await answer.content.readline() == b"\n"
            database.write({"_id": "y"}, new_edits=True)
            lines = [await answer.content.readline()]
            while lines[-1] == b"\n":
                lines.append(await answer.content.readline())
            assert json.loads(lines[-1])["id"] == "y"
        answer.close()


async def test_a_fault_drops_cuts_or_answers() -> None:
    async with Server() as server:
        server.database("a")
        # Twice: aiohttp asks once more by itself where a connection ends before the answer to a GET.
        server.faults = [Fault("GET /a", status=503), Fault("GET /a", drop=True, times=2), Fault("GET /a", cut=5)]
        assert (await _ask(server, "GET", "/a"))[0] == 503
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await _ask(server, "GET", "/a")
        with pytest.raises(aiohttp.ClientPayloadError):
            await _ask(server, "GET", "/a")
        assert (await _ask(server, "GET", "/a"))[0] == 200


async def test_long_histories_are_stemmed() -> None:
    async with Server(Oddities(revs_limit=3)) as server:
        database = server.database("a")
        rev = None
        for number in range(5):
            rev = database.write({"_id": "x", "n": number} | ({"_rev": rev} if rev else {}), new_edits=True)
        assert [each[:1] for each in database.documents["x"].nodes] == ["3", "4", "5"]


async def test_a_held_request_goes_on_when_the_test_says_so() -> None:
    async with Server() as server:
        go = asyncio.Event()
        server.faults = [Fault("PUT /a", until=go)]
        asking = asyncio.create_task(_ask(server, "PUT", "/a"))
        go.set()
        assert (await asking)[0] == 201
