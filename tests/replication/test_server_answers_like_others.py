"""The project's own server gives the same answers as real ones: the same requests, asked of both, one by one.

What is compared is the status, the kind of the body, and the body without what differs from run to run. Where ours is
meant to differ, `DIFFERENT` says why.
"""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from jobs_service.replication.endpoint import parse_endpoint
from tests.replication.partners import basic, couch_database, pouch_server
from tests.replication.server import Oddities, Server

LIKE_POUCHDB = Oddities(
    multipart=False,
    gzip_text=False,
    opaque_sequences=False,
    one_line_changes=True,
    pending=False,
    possible_ancestors=False,
    bulk_get_missing_form=True,
    local_conflicts=True,
)

A1, B1, A2, A3 = (f"{number}-{f'{letter}{number}' * 16}" for number, letter in ((1, "a"), (1, "b"), (2, "a"), (3, "a")))


@dataclass(frozen=True)
class Request:
    """One request; `names` keeps only these members of an answer's object."""

    title: str
    method: str
    path: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()


def _document(id: str, rev: str, *ancestors: str, **body: Any) -> dict[str, Any]:
    start, ids = int(rev.partition("-")[0]), [each.partition("-")[2] for each in (rev, *ancestors)]
    return {"_id": id, "_rev": rev, "_revisions": {"start": start, "ids": ids}, **body}


def _bulk(*documents: dict[str, Any]) -> dict[str, Any]:
    return {"new_edits": False, "docs": documents}


_TEXT = {"t.txt": {"content_type": "text/plain", "revpos": 1, "data": "aGVsbG8="}}
_UNKNOWN = {"stub": True, "revpos": 1, "digest": "md5-x1Ydt6QY3TmyIB3+EQq0pA==", "length": 5}
_RELATED = (
    '--b\r\nContent-Type: application/json\r\n\r\n{"_id":"m","_rev":"'
    + A1
    + '","_revisions":{"start":1,"ids":["'
    + A1.partition("-")[2]
    + '"]},"_attachments":{"f":{"follows":true,"content_type":"x/y","length":5,"revpos":1}}}\r\n--b\r\n'
    'Content-Disposition: attachment; filename="f"\r\nContent-Type: x/y\r\nContent-Length: 5\r\n\r\nhello\r\n--b--'
)

REQUESTS = [
    Request("database that is there", "PUT", ""),
    Request("information", "GET", "", names=("db_name", "doc_count", "update_seq")),
    Request("write many", "POST", "/_bulk_docs", _bulk(_document("x", A2, A1, n=2), _document("x", B1, n=1))),
    Request("write them again", "POST", "/_bulk_docs", _bulk(_document("x", A2, A1, n=2))),
    Request("write one with an attachment", "POST", "/_bulk_docs", _bulk(_document("t", A1, _attachments=_TEXT))),
    Request("write a deletion", "POST", "/_bulk_docs", _bulk(_document("gone", A2, A1, _deleted=True))),
    Request("write an unusual id", "POST", "/_bulk_docs", _bulk(_document("a/b+c%", A1))),
    Request("write a design document", "POST", "/_bulk_docs", _bulk(_document("_design/d", A1))),
    Request("write an illegal id", "POST", "/_bulk_docs", _bulk(_document("y", A1), _document("_bad", A1))),
    Request("nothing of it was written", "GET", "/y"),
    Request("put a revision", "PUT", "/p?new_edits=false", _document("p", A2, A1)),
    Request(
        "put with an attachment",
        "PUT",
        "/m?new_edits=false",
        _RELATED,
        {"Content-Type": 'multipart/related; boundary="b"'},
    ),
    Request(
        "put a stub of what is not there",
        "PUT",
        "/s?new_edits=false",
        _document(
            "s",
            A2,
            A1,
            _attachments={"f": _UNKNOWN},
        ),
    ),
    Request("changes", "GET", "/_changes?style=all_docs&limit=1000"),
    Request("changes with winners alone", "GET", "/_changes?limit=2"),
    Request("changes of some documents", "POST", "/_changes?filter=_doc_ids", {"doc_ids": ["x", "none"]}),
    Request("missing revisions", "POST", "/_revs_diff", {"x": [A2, A3], "none": [A1], "gone": [A2]}),
    Request("an ancestor whose body never came", "POST", "/_revs_diff", {"x": [A1]}),
    Request("no missing revisions", "POST", "/_revs_diff", {}),
    Request(
        "many documents",
        "POST",
        "/_bulk_get?revs=true&latest=true&attachments=false",
        {"docs": [{"id": "x", "rev": A2}, {"id": "gone", "rev": A2}, {"id": "t", "rev": A1}]},
    ),
    Request("a document", "GET", "/x?revs=true"),
    Request("a deleted document", "GET", "/gone"),
    Request("a document that never was", "GET", "/none"),
    Request("an older revision without a body", "GET", f"/x?rev={A1}"),
    Request("a revision", "GET", f"/x?rev={B1}"),
    Request("conflicts", "GET", "/x?conflicts=true"),
    Request("open revisions", "GET", f'/x?revs=true&open_revs=["{A2}","{B1}"]'),
    Request("an id with a slash", "GET", "/a%2Fb%2Bc%25"),
    Request("a design document", "GET", "/_design/d"),
    Request("an attachment", "GET", f"/t/t.txt?rev={A1}"),
    Request("an attachment that came alone", "GET", f"/m/f?rev={A1}"),
    Request("an attachment that is not there", "GET", "/t/none"),
    Request("no local document", "GET", "/_local/l"),
    Request("write a local document", "PUT", "/_local/l", {"n": 1}),
    Request("a local document", "GET", "/_local/l"),
    Request("change a local document", "PUT", "/_local/l", {"n": 2, "_rev": "0-1"}),
    Request("a local document with an old revision", "PUT", "/_local/l", {"n": 3, "_rev": "0-1"}),
    Request("commit", "POST", "/_ensure_full_commit", {}),
    Request("not JSON", "POST", "/_bulk_docs", "{"),
    Request("JSON without saying so", "POST", "/_revs_diff", "{}", {"Content-Type": "text/plain"}),
]

_NO_REVISION = "it answers a write without new edits with what it refused, which is nothing"
DIFFERENT: dict[str, dict[str, str]] = {
    "pouchdb": {
        "write an illegal id": "its word is bad_request; the status is the same",
        "put a revision": _NO_REVISION,
        "put with an attachment": _NO_REVISION,
        "an ancestor whose body never came": "it calls that missing; only leaves are asked about",
        "JSON without saying so": "it takes text for JSON; CouchDB does not",
    },
    "couchdb": {"changes of some documents": "it counts as pending what the filter leaves out"},
}


async def _ask(session: aiohttp.ClientSession, url: str, request: Request) -> tuple[int, str, Any]:
    body = request.body if isinstance(request.body, str | None) else json.dumps(request.body)
    headers = {"Accept": "application/json", "Content-Type": "application/json", **request.headers}
    async with session.request(request.method, url + request.path, data=body, headers=headers) as answer:
        data = await answer.read()
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        try:
            form = json.loads(data)
        except ValueError:
            return answer.status, kind, data
        return answer.status, "JSON", _comparable(form, request)


def _comparable(form: Any, request: Request) -> Any:
    """Without what differs from run to run; an error's reason is prose, so that it is there is enough."""
    if isinstance(form, list):
        rows = [_comparable(each, request) for each in form]
        return sorted(rows, key=json.dumps) if request.path.startswith("/x?revs") else rows
    if not isinstance(form, dict):
        return form
    if request.names:
        form = {name: form.get(name) for name in request.names}
    shown: dict[str, Any] = {}
    for name, value in form.items():
        if name in ("seq", "last_seq", "update_seq", "instance_start_time"):
            shown[name] = bool(re.match(r"\d+", str(value)))
        elif name == "reason":
            shown[name] = "..."
        elif name == "digest":
            shown[name] = value[:4]  # of the compressed form, which differs from library to library
        elif name == "db_name":
            shown[name] = "db"
        elif name == "changes":
            shown[name] = sorted(each["rev"] for each in value)
        elif name in ("status", "message", "name", "docId"):
            pass  # PouchDB's own additions to errors
        else:
            shown[name] = _comparable(value, request)
    return shown


@asynccontextmanager
async def _partner(kind: str, directory: Path) -> AsyncIterator[tuple[str, dict[str, str]]]:
    if kind == "couchdb":
        async with couch_database() as url:
            endpoint = parse_endpoint(url)
            password = endpoint.password.reveal() if endpoint.password else ""
            yield endpoint.url, {"Authorization": basic(endpoint.user or "", password)}
    else:
        async with pouch_server(directory) as pouch:
            yield f"{pouch.url}/db", {}


@pytest.mark.parametrize("kind", ["pouchdb", "couchdb"])
async def test_the_answers_are_the_same(kind: str, tmp_path: Path) -> None:
    oddities = LIKE_POUCHDB if kind == "pouchdb" else Oddities()
    differing: dict[str, tuple[Any, Any]] = {}
    async with (
        Server(oddities) as server,
        _partner(kind, tmp_path) as (url, headers),
        aiohttp.ClientSession() as ours,
        aiohttp.ClientSession(headers=headers) as theirs,
    ):
        for session, address in ((ours, f"{server.url}/db"), (theirs, url)):
            (await session.put(address)).release()
        for request in REQUESTS:
            mine = await _ask(ours, f"{server.url}/db", request)
            other = await _ask(theirs, url, request)
            if mine != other:
                differing[request.title] = (mine, other)
    unexplained = {title: both for title, both in differing.items() if title not in DIFFERENT[kind]}
    told = "\n".join(f"{title}:\n  ours   {mine}\n  theirs {other}" for title, (mine, other) in unexplained.items())
    assert not unexplained, told
    assert set(DIFFERENT[kind]) == set(differing), "they have become the same"
