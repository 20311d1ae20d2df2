"""Requests about one document: its revisions, its attachments, and `_local` documents."""

import json
import secrets
from typing import TYPE_CHECKING, Any

from aiohttp import BodyPartReader, MultipartReader

from tests.replication.server.database_requests import Result, break_down, check, forbidden, open_revs
from tests.replication.server.databases import Refused, StoredDatabase, StoredDocument, generation
from tests.replication.server.forms import document_form, mixed

if TYPE_CHECKING:
    from tests.replication.server.server import Asked


async def handle(asked: "Asked", database: StoredDatabase, rest: list[str]) -> Result:
    """A request below /db/ID, /db/_design/ID or /db/_local/ID."""
    if rest[0] == "_local":
        return await _local(asked, database, "/".join(rest[1:]))
    taken = 2 if rest[0] == "_design" else 1
    id, attachment = "/".join(rest[:taken]), "/".join(rest[taken:])
    if attachment:
        return await _attachment(asked, database, id, attachment)
    if asked.method == "PUT":
        return await _put(asked, database, id)
    return await _get(asked, database, id)


async def _get(asked: "Asked", database: StoredDatabase, id: str) -> Result:
    query = asked.query
    document = database.documents.get(id) or StoredDocument(id)
    if "open_revs" in query:
        return await _open_revs(asked, document)
    leaves = document.leaves()
    rev = query.get("rev", leaves[0] if leaves else None)
    if rev is None or rev not in document.nodes or document.nodes[rev].body is None:
        raise Refused(404, "not_found", "missing")
    if "rev" not in query and document.nodes[rev].deleted:
        raise Refused(404, "not_found", "deleted")
    revs, inline = query.get("revs") == "true", query.get("attachments") == "true"
    form = document_form(document, rev, revs=revs, inline=inline)
    return 200, form


async def _open_revs(asked: "Asked", document: StoredDocument) -> Result:
    query, oddities = asked.query, asked.server.oddities
    revs = json.loads(query["open_revs"])
    since = json.loads(query.get("atts_since", "[]"))
    found = open_revs(document, revs, query.get("latest") == "true")
    if oddities.multipart and "multipart/mixed" in asked.headers.get("Accept", ""):
        outer = secrets.token_hex(16)
        headers = {"Content-Type": f'multipart/mixed; boundary="{outer}"'}
        return 200, mixed(document, found, since, outer, oddities.part_lengths), headers
    answers: list[dict[str, Any]] = []
    inline, with_revs = query.get("attachments") == "true", query.get("revs") == "true"
    for rev, there in found:
        if there:
            form = document_form(
                document, rev, revs=with_revs, inline=inline, since=since, encoding_info="att_encoding_info" in query
            )
            answers.append({"ok": form})
        else:
            answers.append({"missing": rev})
    return 200, answers


async def _put(asked: "Asked", database: StoredDatabase, id: str) -> Result:
    form, parts = await _upload(asked)
    form["_id"] = id
    if "rev" in asked.query:
        form["_rev"] = asked.query["rev"]
    check(asked, form)
    reason = forbidden(asked, form)
    if reason is not None:
        raise Refused(403, "forbidden", reason)
    break_down(asked, form)
    limit = asked.server.oddities.max_attachment
    for name, data in parts:
        if limit is not None and len(data) > limit:
            raise Refused(413, "attachment_too_large", name)
    rev = database.write(form, asked.query.get("new_edits") != "false", parts)
    return 201, {"ok": True, "id": id, "rev": rev}


async def _upload(asked: "Asked") -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
    if not asked.headers.get("Content-Type", "").startswith("multipart/related"):
        return await asked.json(), []
    limit = asked.server.oddities.max_request
    if limit is not None and (asked.request.content_length or 0) > limit:
        raise Refused(413, "too_large", "the request entity is too large")
    await asked.agree()
    reader = MultipartReader(asked.headers, asked.request.content)
    first = await reader.next()
    assert isinstance(first, BodyPartReader)
    form = json.loads(await first.read())
    parts: list[tuple[str, bytes]] = []
    while (part := await reader.next()) is not None:
        assert isinstance(part, BodyPartReader)
        parts.append((part.filename or "", bytes(await part.read(decode=False))))
    return form, parts


async def _attachment(asked: "Asked", database: StoredDatabase, id: str, name: str) -> Result:
    document = database.documents.get(id) or StoredDocument(id)
    rev = asked.query.get("rev") or next(iter(document.leaves()), None)
    node = document.nodes.get(rev) if rev else None
    if asked.method == "PUT":
        data, kind = await asked.read(), asked.headers.get("Content-Type", "application/octet-stream")
        stubs = {key: {"stub": True} for key in node.attachments} if node else {}
        number = generation(rev) + 1 if rev else 1
        follows = {"follows": True, "content_type": kind, "length": len(data), "revpos": number}
        form = {**((node.body or {}) if node else {}), "_id": id, "_attachments": {**stubs, name: follows}}
        if "rev" in asked.query:
            form["_rev"] = asked.query["rev"]
        return 201, {"ok": True, "id": id, "rev": database.write(form, True, [(name, data)])}
    if node is None or name not in node.attachments:
        raise Refused(404, "not_found", "Document is missing attachment")
    found = node.attachments[name]
    headers = {"Content-Type": found.content_type}
    if found.encoding and found.encoding in asked.headers.get("Accept-Encoding", ""):
        return 200, found.data, {**headers, "Content-Encoding": found.encoding}
    return 200, found.content, headers


async def _local(asked: "Asked", database: StoredDatabase, id: str) -> Result:
    known = database.local.get(id)
    if asked.method == "GET":
        if known is None:
            raise Refused(404, "not_found", "missing")
        return 200, known
    form = await asked.json()
    if asked.server.oddities.local_conflicts and form.get("_rev") != (known["_rev"] if known else None):
        raise Refused(409, "conflict", "Document update conflict.")
    number = int(str(form["_rev"]).partition("-")[2]) + 1 if form.get("_rev") else 1
    rev = f"0-{number}"
    database.local[id] = {**form, "_id": f"_local/{id}", "_rev": rev}
    database.touched()
    return 201, {"ok": True, "id": f"_local/{id}", "rev": rev}
