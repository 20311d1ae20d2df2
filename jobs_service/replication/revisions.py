"""Revisions of a document: as a source sends them, in multipart or JSON, and with small attachments for a target."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

from jobs_service.replication.bodies import Parts, decoded
from jobs_service.replication.contract import Document, ProtocolError, RevisionRefusal

MOST_DOCUMENT: Final = 256 << 20
"""Most bytes of one revision's JSON."""

Source: TypeAlias = Callable[[], AsyncGenerator[bytes, None]]
Fetch: TypeAlias = Callable[[str, str, str | None], AsyncGenerator[bytes, None]]

_T = TypeVar("_T")

MOST_INLINE: Final = 64 << 10
"""Total bytes of a document's attachments up to which they count as small."""


# From the source


@dataclass(slots=True)
class StreamedAttachment:
    """An attachment with bytes from `source`, a function that is called once."""

    name: str
    content_type: str
    length: int
    encoding: str | None
    encoded_length: int | None
    digest: str | None
    revpos: int | None
    source: Source

    @property
    def bytes_to_come(self) -> int:
        """The number of bytes that `chunks` yields."""
        return self.length if self.encoding is None or self.encoded_length is None else self.encoded_length

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes. The last chunk is held back until the digest matches, so that no target takes wrong bytes.

        Raises:
            ProtocolError: the number or the digest of the bytes is not the document's.
        """
        hash, count, held = hashlib.md5(usedforsecurity=False), 0, b""
        async with aclosing(self.source()) as chunks:
            async for chunk in chunks:
                if held:
                    yield held
                hash.update(chunk)
                count += len(chunk)
                held = chunk
                if count > self.bytes_to_come:
                    break
        kind, _, digest = (self.digest or "").partition("-")
        right = count == self.bytes_to_come
        if right and kind == "md5" and digest != base64.b64encode(hash.digest()).decode():
            right = False
        if not right:
            raise ProtocolError(f"attachment {self.name!r} did not come as its document says", transient=True)
        if held:
            yield held


def queries(revs: Sequence[str], ancestors: Sequence[str], room: int) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Divide revisions into queries so that each address has no more than `room` characters of revisions.

    Ancestors without room are left out: then more attachments come than needed.
    """
    groups: list[tuple[Sequence[str], Sequence[str]]] = []
    group: list[str] = []
    used = 0
    for rev in revs:
        size = _size(rev)
        if group and used + size > room:
            groups.append((group, ()))
            group, used = [], 0
        group.append(rev)
        used += size
    groups.append((group, ()))
    return [(group, _fitting(ancestors, room - sum(map(_size, group)))) for group, _ in groups]


def _size(rev: str) -> int:
    return len(quote(f'"{rev}",', safe=""))


def _fitting(ancestors: Sequence[str], room: int) -> Sequence[str]:
    count = 0
    while count < len(ancestors) and (room := room - _size(ancestors[count])) >= 0:
        count += 1
    return ancestors[:count]


def revisions_query(revs: Sequence[str], ancestors: Sequence[str]) -> list[tuple[str, str]]:
    """Return the query for these revisions, or for their newest descendants, with histories."""
    query = [("revs", "true"), ("open_revs", json.dumps(list(revs), separators=(",", ":"))), ("latest", "true")]
    query.append(("att_encoding_info", "true"))
    if ancestors:
        query.append(("atts_since", json.dumps(list(ancestors), separators=(",", ":"))))
    return query


async def of_multipart(id: str, parts: Parts) -> AsyncGenerator[Document | RevisionRefusal, None]:
    """Yield the revisions in a multipart/mixed answer."""
    async for part in parts:
        kind, parameters = part.content_type
        if kind == "multipart/related":
            inner = part.parts()
            first = await anext(inner, None)
            if first is None:
                raise ProtocolError(f"an answer about document {id!r} has a part without a document")
            body = _object(decoded(await first.read(MOST_DOCUMENT)))
            yield document_of(id, body, [_following(name, stub, inner) for name, stub in _attachments(body, "follows")])
            await inner.finish()
            continue
        form = _object(decoded(await part.read(MOST_DOCUMENT)))
        if parameters.get("error") == "true" or "_id" not in form:
            yield missing(id, form)
        else:
            yield document_of(id, form)


def of_json(id: str, answers: Any, ancestors: Sequence[str], fetch: Fetch) -> list[Document | RevisionRefusal]:
    """Return the revisions in a JSON answer; `fetch` reads an attachment by name, revision and encoding."""
    if not isinstance(answers, list):
        raise ProtocolError(f"an answer about document {id!r} is no list")
    found: list[Document | RevisionRefusal] = []
    for answer in answers:
        form = _object(answer)
        if "ok" not in form:
            found.append(missing(id, form))
            continue
        body = _object(form["ok"])
        known = _newest_known(body, ancestors)
        attachments = []
        for name, stub in _attachments(body, "stub"):
            if _number(stub.get("revpos"), known + 1) > known:
                del stub["stub"]
                stub["follows"] = True
                attachments.append(_attachment(name, stub, partial(fetch, name, body["_rev"], stub.get("encoding"))))
        found.append(document_of(id, body, attachments))
    return found


def document_of(id: str, body: dict[str, Any], attachments: Sequence[StreamedAttachment] = ()) -> Document:
    """Return the document in this body; its id must be the requested one."""
    if body.get("_id") != id or not isinstance(body.get("_rev"), str):
        raise ProtocolError(f"an answer about document {id!r} is about another one")
    return Document(id, body["_rev"], body, attachments)


def missing(id: str, form: Mapping[str, Any]) -> RevisionRefusal:
    """Return the refusal of a revision, from any of the servers' forms."""
    error = form.get("error")
    if isinstance(error, Mapping):
        return RevisionRefusal(id, error.get("rev"), str(error.get("error", "unknown")), str(error.get("reason", "")))
    if "missing" in form:
        return RevisionRefusal(id, str(form["missing"]), "not_found", "missing")
    return RevisionRefusal(id, form.get("rev"), str(error or "unknown"), str(form.get("reason", "")))


def _following(name: str, stub: dict[str, Any], parts: Parts) -> StreamedAttachment:
    async def source() -> AsyncGenerator[bytes, None]:
        part = await anext(parts, None)
        if part is None:
            raise ProtocolError(f"attachment {name!r} did not come")
        async for chunk in part.chunks():
            yield chunk

    return _attachment(name, stub, source)


def _attachment(name: str, stub: Mapping[str, Any], source: Source) -> StreamedAttachment:
    length, encoded_length = stub.get("length"), stub.get("encoded_length")
    if type(length) is not int:
        raise ProtocolError(f"attachment {name!r} has no length")
    kind, encoding = str(stub.get("content_type", "application/octet-stream")), stub.get("encoding")
    revpos = stub.get("revpos")
    return StreamedAttachment(name, kind, length, encoding, encoded_length, stub.get("digest"), revpos, source)


def _attachments(body: Mapping[str, Any], mark: str) -> list[tuple[str, dict[str, Any]]]:
    found = body.get("_attachments") or {}
    return [(name, stub) for name, stub in _object(found).items() if _object(stub).get(mark)]


def _newest_known(body: Mapping[str, Any], ancestors: Sequence[str]) -> int:
    """Return the generation of the document's newest ancestor among these; 0 if there is none."""
    revisions = body.get("_revisions") or {}
    start, ids = revisions.get("start", 0), revisions.get("ids", [])
    known = set(ancestors)
    return next((start - number for number, name in enumerate(ids) if f"{start - number}-{name}" in known), 0)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ProtocolError("an answer lacks an object where one belongs")
    return value


def _number(value: Any, otherwise: int) -> int:
    return value if type(value) is int else otherwise


# To the target


@dataclass(frozen=True, slots=True)
class SmallAttachments:
    """The attachments of one revision, as described by a source.

    Attributes:
        stubs: the stubs by name.
        size: the bytes of all attachments as base64.
    """

    stubs: Mapping[str, Mapping[str, Any]]
    size: int

    def are_in(self, document: Document) -> bool:
        """Return whether a document has all of them inline, each as its stub describes it."""
        given = document.body.get("_attachments") or {}
        return given.keys() == self.stubs.keys() and all(_is_whole(given[name], self.stubs[name]) for name in given)


def small_attachments(document: Document) -> SmallAttachments | None:
    """Return the attachments of a document with stubs; None if they are large, compressed, or of unknown size."""
    stubs = document.body.get("_attachments") or {}
    if not isinstance(stubs, Mapping) or not all(isinstance(each, Mapping) for each in stubs.values()):
        return None
    # Compressed attachments stay compressed: a target would compress them at its own level, to another digest.
    plain = [each for each in stubs.values() if each.get("stub") and not each.get("encoding")]
    lengths = [length for each in plain if type(length := each.get("length")) is int]
    if len(lengths) < len(stubs) or sum(lengths) > MOST_INLINE:
        return None
    return SmallAttachments(stubs, sum((each + 2) // 3 * 4 for each in lengths))


def portions(wanted: Iterable[tuple[_T, SmallAttachments]], most: int) -> Iterator[list[_T]]:
    """Divide documents with attachments into lists with at most `most` bytes of attachments."""
    some: list[_T] = []
    used = 0
    for each, attachments in wanted:
        if some and used + attachments.size > most:
            yield some
            some, used = [], 0
        some.append(each)
        used += attachments.size
    if some:
        yield some


def _is_whole(given: Any, stub: Mapping[str, Any]) -> bool:
    if not isinstance(given, Mapping) or not isinstance(given.get("data"), str):
        return False
    try:
        content = base64.b64decode(given["data"], validate=True)
    except (binascii.Error, ValueError):
        return False
    kind, _, digest = str(stub.get("digest", "")).partition("-")
    if kind == "md5":
        return digest == base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
    return bool(len(content) == stub["length"])


def refusal_of(form: Mapping[str, Any]) -> RevisionRefusal:
    """Return the refusal of a write, from any of the servers' forms."""
    error = form["error"] if isinstance(form["error"], str) else form.get("name", "unknown")
    status = form.get("status")
    reason = str(form.get("reason") or form.get("message") or "")
    return RevisionRefusal(
        str(form.get("id", "")), form.get("rev"), str(error), reason, status if type(status) is int else None
    )


def assigned(
    wanted: Sequence[tuple[str, str, Sequence[str]]], results: Sequence[Any]
) -> list[list[Document | RevisionRefusal]]:
    """Return the results in the order of the requested revisions.

    PouchDB returns several revisions of a document in an order of its own, or together.
    """
    forms: list[tuple[str, list[Any]]] = []
    for result in results:
        if not isinstance(result, Mapping) or not isinstance(result.get("docs"), list):
            raise ProtocolError("an answer of _bulk_get lacks documents")
        forms.append((str(result.get("id")), result["docs"]))
    asked = [id for id, _, _ in wanted]
    if [id for id, _ in forms] == asked and len(set(asked)) == len(asked):
        return [[_found(id, form) for form in docs] for id, docs in forms]
    by_id: dict[str, list[Document | RevisionRefusal]] = {}
    for id, docs in forms:
        by_id.setdefault(id, []).extend(_found(id, form) for form in docs)
    found: list[list[Document | RevisionRefusal]] = []
    for id, rev, _ in wanted:
        answers = by_id.get(id, ())
        mine = [each for each in answers if (stands_for(each, rev) if isinstance(each, Document) else each.rev == rev)]
        found.append(mine or [RevisionRefusal(id, rev, "not_found", "not in the answer")])
    return found


def stands_for(document: Document, rev: str) -> bool:
    """Return whether a document is a revision, or its descendant."""
    if document.rev == rev:
        return True
    revisions = document.body.get("_revisions") or {}
    generation, _, name = rev.partition("-")
    names, newest = revisions.get("ids") or [], revisions.get("start")
    if not generation.isdecimal() or not isinstance(newest, int):
        return False
    position = newest - int(generation)
    return bool(0 <= position < len(names) and names[position] == name)


def _found(id: str, form: Any) -> Document | RevisionRefusal:
    if isinstance(form, Mapping) and isinstance(form.get("ok"), dict):
        return document_of(id, form["ok"])
    return missing(id, form if isinstance(form, Mapping) else {})
