"""How stored documents are shown: JSON, and CouchDB's multipart forms."""

import base64
import json
import secrets
from collections.abc import AsyncIterator, Iterable
from typing import Any

from tests.replication.server.databases import StoredDocument, generation


def document_form(
    document: StoredDocument,
    rev: str,
    *,
    revs: bool = False,
    inline: bool = False,
    follows: bool = False,
    since: Iterable[str] = (),
    encoding_info: bool = False,
) -> dict[str, Any]:
    """A revision as JSON; attachments newer than those `since` are inline or follow, the others are stubs."""
    node = document.nodes[rev]
    history = document.history(rev)
    form: dict[str, Any] = {"_id": document.id, "_rev": rev, **(node.body or {})}
    if node.deleted:
        form["_deleted"] = True
    if revs:
        form["_revisions"] = {"start": generation(rev), "ids": [each.partition("-")[2] for each in history]}
    known = max((generation(each) for each in since if each in history), default=0)
    attachments: dict[str, Any] = {}
    for name, attachment in node.attachments.items():
        stub = attachment.stub(encoding_info or follows)
        if follows and attachment.revpos > known:
            attachments[name] = {**stub, "follows": True}
        elif inline and attachment.revpos > known:
            kept = {key: stub[key] for key in ("content_type", "revpos", "digest")}
            attachments[name] = {**kept, "data": base64.b64encode(attachment.content).decode()}
        else:
            attachments[name] = {**stub, "stub": True}
    if attachments:
        form["_attachments"] = attachments
    return form


async def mixed(
    document: StoredDocument, found: Iterable[tuple[str, bool]], since: Iterable[str], outer: str, lengths: bool
) -> AsyncIterator[bytes]:
    """The revisions (with whether each is there) as multipart/mixed, those with attachments as multipart/related."""
    yield f"--{outer}".encode()
    for rev, there in found:
        if not there:
            missing = json.dumps({"missing": rev})
            yield f'\r\nContent-Type: application/json; error="true"\r\n\r\n{missing}\r\n--{outer}'.encode()
            continue
        form = document_form(document, rev, revs=True, follows=True, since=since)
        names = [name for name, stub in form.get("_attachments", {}).items() if stub.get("follows")]
        if not names:
            yield b"\r\nContent-Type: application/json\r\n\r\n" + json.dumps(form).encode()
        else:
            inner = secrets.token_hex(16)
            yield f'\r\nContent-Type: multipart/related; boundary="{inner}"\r\n\r\n'.encode()
            async for chunk in _related(document, rev, form, names, inner, lengths):
                yield chunk
        yield f"\r\n--{outer}".encode()
    yield b"--"


async def _related(
    document: StoredDocument, rev: str, form: dict[str, Any], names: list[str], inner: str, lengths: bool
) -> AsyncIterator[bytes]:
    yield f"--{inner}\r\nContent-Type: application/json\r\n\r\n{json.dumps(form)}\r\n--{inner}".encode()
    for name in names:
        attachment = document.nodes[rev].attachments[name]
        head = f'\r\nContent-Disposition: attachment; filename="{name}"\r\nContent-Type: {attachment.content_type}'
        if lengths:
            head += f"\r\nContent-Length: {len(attachment.data)}"
        if attachment.encoding:
            head += f"\r\nContent-Encoding: {attachment.encoding}"
        yield f"{head}\r\n\r\n".encode()
        for start in range(0, len(attachment.data), 65536):
            yield attachment.data[start : start + 65536]
        yield f"\r\n--{inner}".encode()
    yield b"--"
