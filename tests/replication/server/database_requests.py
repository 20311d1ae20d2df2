"""Requests about a whole database: its feed of changes, revisions that are missing, many documents at once."""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tests.replication.server.databases import Refused, StoredDatabase, StoredDocument
from tests.replication.server.forms import document_form
from tests.replication.server.selectors import matches

if TYPE_CHECKING:
    from tests.replication.server.server import Asked, Server

Result = tuple[int, Any] | tuple[int, Any, dict[str, str]]


def create(server: "Server", name: str) -> Result:
    """PUT /db"""
    if not re.fullmatch(r"[a-z][a-z0-9_$()+/-]*", name):
        raise Refused(400, "illegal_database_name", f"Name: '{name}'. Only lowercase characters are allowed.")
    if name in server.databases:
        raise Refused(412, "file_exists", "The database could not be created, the file already exists.")
    server.database(name)
    return 201, {"ok": True}


async def info(asked: "Asked", database: StoredDatabase) -> Result:
    """GET /db"""
    alive = [document for document in database.documents.values() if not document.nodes[document.leaves()[0]].deleted]
    return 200, {
        "db_name": database.name,
        "update_seq": shown(asked, database.sequence),
        "doc_count": len(alive),
        "doc_del_count": len(database.documents) - len(alive),
        "disk_format_version": 8,
        "instance_start_time": asked.server.oddities.instance_start_time,
    }


def shown(asked: "Asked", sequence: int) -> Any:
    """A sequence as clients see it."""
    if not asked.server.oddities.opaque_sequences:
        return sequence
    return f"{sequence}-{base64.urlsafe_b64encode(b'node@%d' % sequence).decode()}"


def position(database: StoredDatabase, since: str | None) -> int:
    """The number in a sequence that a client gives."""
    if since == "now":
        return database.sequence
    found = re.match(r'"?(\d+)', since or "0")
    if found is None:
        raise Refused(400, "bad_request", "Malformed sequence supplied in 'since' parameter.")
    return int(found[1])


async def changes(asked: "Asked", database: StoredDatabase) -> Result:
    """GET or POST /db/_changes"""
    wanted = await _filter(asked)
    query = asked.query
    feed, since = query.get("feed", "normal"), position(database, query.get("since"))
    limit = int(query["limit"]) if "limit" in query else None
    if feed == "continuous":
        return 200, _continuous(asked, database, since, limit, wanted), {"Content-Type": "application/json"}
    if feed == "longpoll":
        seconds = int(query["timeout"]) / 1000 if "timeout" in query else None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not any(map(wanted, database.rows(since))) and not asked.server.closing.is_set():
                    await database.changed.wait()
    rows, last = _rows(asked, database, since, limit, wanted)
    end: dict[str, Any] = {"last_seq": shown(asked, last)}
    if asked.server.oddities.pending:
        end["pending"] = sum(wanted(document) for document in database.rows(last))
    if asked.server.oddities.one_line_changes:
        return 200, {"results": rows, **end}
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = f'{{"results":[\n{lines}\n],\n{json.dumps(end)[1:-1]}}}\n'
    return 200, text.encode()


async def _filter(asked: "Asked") -> Callable[[StoredDocument], bool]:
    query = asked.query
    name = query.get("filter")
    body = await asked.json() if asked.method == "POST" else {}
    if name is None:
        return lambda _: True
    if name == "_doc_ids":
        ids = set(body["doc_ids"] if "doc_ids" in body else json.loads(query["doc_ids"]))
        return lambda document: document.id in ids
    if name == "_selector":
        selector = body["selector"]
        return lambda document: matches(selector, document_form(document, document.leaves()[0]))
    known = asked.server.oddities.filters.get(name)
    if known is None:
        raise Refused(404, "not_found", "missing")
    return lambda document: known(document_form(document, document.leaves()[0]), query)


def _row(asked: "Asked", document: StoredDocument, number: int) -> dict[str, Any]:
    leaves = document.leaves()
    revs = leaves if asked.query.get("style") == "all_docs" else leaves[:1]
    interval = int(asked.query.get("seq_interval", "1"))
    seq = shown(asked, document.sequence) if number % interval == 0 else None
    row: dict[str, Any] = {"seq": seq, "id": document.id, "changes": [{"rev": rev} for rev in revs]}
    if document.nodes[leaves[0]].deleted:
        row["deleted"] = True
    return row


def _rows(
    asked: "Asked", database: StoredDatabase, since: int, limit: int | None, wanted: Callable[[StoredDocument], bool]
) -> tuple[list[dict[str, Any]], int]:
    rows: list[dict[str, Any]] = []
    last = since
    if limit == 0:
        return rows, last
    for document in database.rows(since):
        if wanted(document):
            if limit is not None and len(rows) == limit:
                return rows, last
            rows.append(_row(asked, document, len(rows) + 1))
        last = document.sequence
    return rows, last


async def _continuous(
    asked: "Asked",
    database: StoredDatabase,
    since: int,
    limit: int | None,
    wanted: Callable[[StoredDocument], bool],
) -> AsyncIterator[bytes]:
    query, oddities = asked.query, asked.server.oddities
    beat = query.get("heartbeat")
    seconds = 60.0 if beat == "true" else int(beat or query.get("timeout", "60000")) / 1000
    number = 0
    yield b""
    while not asked.server.closing.is_set():
        changed = database.changed
        for document in database.rows(since):
            since = document.sequence
            if wanted(document):
                number += 1
                yield json.dumps(_row(asked, document, number)).encode() + b"\n"
                if number == limit:
                    yield json.dumps({"last_seq": shown(asked, since), "pending": 0}).encode() + b"\n"
                    return
        try:
            await asyncio.wait_for(changed.wait(), seconds)
        except TimeoutError:
            if beat is None:
                yield json.dumps({"last_seq": shown(asked, since), "pending": 0}).encode() + b"\n"
                return
        if beat is not None and oddities.heartbeats:  # also when it was woken, whatever has changed
            yield b"\n"


async def revs_diff(asked: "Asked", database: StoredDatabase) -> Result:
    """POST /db/_revs_diff"""
    answer: dict[str, Any] = {}
    for id, revs in (await asked.json()).items():
        check_partition(asked, id)
        document = database.documents.get(id) or StoredDocument(id)
        missing = [rev for rev in revs if rev not in document.nodes]
        if missing:
            answer[id] = {"missing": missing}
            if document.nodes and asked.server.oddities.possible_ancestors:
                answer[id]["possible_ancestors"] = document.leaves()
    return 200, answer


def open_revs(document: StoredDocument, revs: list[str], latest: bool) -> list[tuple[str, bool]]:
    """The revisions that are to be sent for those asked for, and whether each is there."""
    found: dict[str, bool] = {}
    for rev in revs:
        above = document.leaves_above(rev) if latest else [rev] if rev in document.nodes else []
        found |= {leaf: document.nodes[leaf].body is not None for leaf in above} or {rev: False}
    return list(found.items())


async def bulk_get(asked: "Asked", database: StoredDatabase) -> Result:
    """POST /db/_bulk_get"""
    oddities = asked.server.oddities
    if not oddities.bulk_get:
        raise Refused(404, "not_found", "missing")
    query, results = asked.query, []
    inline = query.get("attachments") == "true"
    for wanted in (await asked.json())["docs"]:
        id, rev = wanted["id"], wanted.get("rev")
        document = database.documents.get(id) or StoredDocument(id)
        revs = [rev] if rev else document.leaves()[:1]
        docs: list[dict[str, Any]] = []
        for each, there in open_revs(document, revs, query.get("latest") == "true"):
            if there:
                since = wanted.get("atts_since", ())
                with_revs, told = query.get("revs") == "true", "att_encoding_info" in query
                form = document_form(document, each, revs=with_revs, inline=inline, since=since, encoding_info=told)
                docs.append({"ok": form})
            elif oddities.bulk_get_missing_form:
                docs.append({"missing": each})
            else:
                docs.append({"error": {"id": id, "rev": each, "error": "not_found", "reason": "missing"}})
        results.append({"id": id, "docs": docs})
    return 200, {"results": results}


async def bulk_docs(asked: "Asked", database: StoredDatabase) -> Result:
    """POST /db/_bulk_docs"""
    given = await asked.json()
    new_edits, results = given.get("new_edits", True), []
    for form in given["docs"]:
        check(asked, form)
    for form in given["docs"]:
        try:
            reason = forbidden(asked, form)
            if reason is not None:
                raise Refused(403, "forbidden", reason)
            break_down(asked, form)
            rev = database.write(form, new_edits)
            if new_edits:
                results.append({"ok": True, "id": form["_id"], "rev": rev})
        except Refused as error:
            about = {"id": form["_id"], "rev": form.get("_rev")}
            results.append(about | {"error": error.error, "reason": error.reason})
    return 201, results


def check(asked: "Asked", form: dict[str, Any]) -> None:
    """What makes a whole request be refused: an illegal id, a document that is too large."""
    id, limit = form.get("_id"), asked.server.oddities.max_document
    if not isinstance(id, str):
        raise Refused(400, "illegal_docid", "Document id must be a string")
    if not id:
        raise Refused(400, "illegal_docid", "Document id must not be empty")
    check_partition(asked, id)
    if id.startswith("_") and not id.startswith(("_design/", "_local/")):
        raise Refused(400, "illegal_docid", "Only reserved document ids may start with underscore.")
    for key in form:
        if key.startswith("_") and key not in _RESERVED:
            raise Refused(400, "doc_validation", f"Bad special document member: {key}")
    if limit is not None:
        plain = {key: value for key, value in form.items() if key not in ("_attachments", "_revisions")}
        if len(json.dumps(plain)) > limit:
            raise Refused(413, "document_too_large", id)
    most = asked.server.oddities.max_attachment
    for name, attachment in form.get("_attachments", {}).items():
        if most is not None and len(base64.b64decode(attachment.get("data", ""))) > most:
            raise Refused(413, "attachment_too_large", name)


def check_partition(asked: "Asked", id: str) -> None:
    """What a partitioned database refuses whole requests for."""
    if asked.server.oddities.partitioned and ":" not in id and not id.startswith("_design/"):
        raise Refused(400, "illegal_docid", "Doc id must be of form partition:id")


def break_down(asked: "Asked", form: dict[str, Any]) -> None:
    """Answer for a document at which the validation function has an error at run time."""
    breaks_down = asked.server.oddities.breaks_down
    if breaks_down is not None and breaks_down(form):
        raise Refused(500, "TypeError", "{[]}")


def forbidden(asked: "Asked", form: dict[str, Any]) -> str | None:
    """Why the validation function refuses this document, or None."""
    validate = asked.server.oddities.validate
    return validate(form) if validate is not None and not form["_id"].startswith("_design/") else None


async def full_commit(asked: "Asked", database: StoredDatabase) -> Result:
    """POST /db/_ensure_full_commit"""
    await asked.json() if asked.request.content_length else None
    return 201, {"ok": True, "instance_start_time": asked.server.oddities.instance_start_time}


async def all_docs(asked: "Asked", database: StoredDatabase) -> Result:
    """GET /db/_all_docs"""
    rows: list[dict[str, Any]] = []
    for id, document in sorted(database.documents.items()):
        winner = document.leaves()[0]
        if not document.nodes[winner].deleted:
            row: dict[str, Any] = {"id": id, "key": id, "value": {"rev": winner}}
            if asked.query.get("include_docs") == "true":
                row["doc"] = document_form(document, winner)
            rows.append(row)
    return 200, {"total_rows": len(rows), "offset": 0, "rows": rows}


_RESERVED = {"_id", "_rev", "_deleted", "_revisions", "_attachments"}

HANDLERS: dict[tuple[str, str], Callable[["Asked", StoredDatabase], Awaitable[Result]]] = {
    ("GET", ""): info,
    ("HEAD", ""): info,
    ("GET", "_changes"): changes,
    ("POST", "_changes"): changes,
    ("POST", "_revs_diff"): revs_diff,
    ("POST", "_bulk_get"): bulk_get,
    ("POST", "_bulk_docs"): bulk_docs,
    ("POST", "_ensure_full_commit"): full_commit,
    ("GET", "_all_docs"): all_docs,
}
