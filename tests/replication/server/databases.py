"""Databases in memory: revision trees, attachments, sequences, local documents."""

import asyncio
import base64
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


class Refused(Exception):
    """An error that the server answers with."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(error, reason)
        self.status, self.error, self.reason = status, error, reason


@dataclass(slots=True)
class StoredAttachment:
    """An attachment as it is kept: `encoding` "gzip" or None."""

    content_type: str
    data: bytes
    length: int
    encoding: str | None
    revpos: int

    @property
    def digest(self) -> str:
        return "md5-" + base64.b64encode(hashlib.md5(self.data).digest()).decode()

    @property
    def content(self) -> bytes:
        return gzip.decompress(self.data) if self.encoding == "gzip" else self.data

    def stub(self, encoding_info: bool) -> dict[str, Any]:
        form = {"content_type": self.content_type, "revpos": self.revpos, "digest": self.digest, "length": self.length}
        told = self.encoding and encoding_info
        return form | ({"encoding": self.encoding, "encoded_length": len(self.data)} if told else {})


@dataclass(slots=True)
class Node:
    """A revision: `body` is None where only its name is known."""

    parent: str | None = None
    body: dict[str, Any] | None = None
    deleted: bool = False
    attachments: dict[str, StoredAttachment] = field(default_factory=dict)


def generation(rev: str) -> int:
    """The number before the dash."""
    return int(rev.partition("-")[0])


def order(rev: str) -> tuple[int, str]:
    """What decides between revisions that are both alive."""
    return generation(rev), rev.partition("-")[2]


@dataclass(slots=True)
class StoredDocument:
    """One document: a forest of revisions."""

    id: str
    sequence: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)

    def leaves(self) -> list[str]:
        """The leaf revisions, the winner first."""
        parents = {node.parent for node in self.nodes.values()}
        leaves = [rev for rev in self.nodes if rev not in parents]
        return sorted(leaves, key=lambda rev: (not self.nodes[rev].deleted, *order(rev)), reverse=True)

    def history(self, rev: str) -> list[str]:
        """The revision and its known ancestors, newest first."""
        found: list[str] = []
        at: str | None = rev
        while at is not None and at in self.nodes:
            found.append(at)
            at = self.nodes[at].parent
        return found

    def leaves_above(self, rev: str) -> list[str]:
        """The leaves that come from this revision."""
        return [leaf for leaf in self.leaves() if rev in self.history(leaf)]

    def graft(self, path: list[str], node: Node) -> bool:
        """Add the revision path[0] whose ancestors are the rest; False: it was known."""
        if path[0] in self.nodes:
            return False
        for rev, parent in zip(path, [*path[1:], None], strict=True):
            known = self.nodes.setdefault(rev, Node())
            known.parent = known.parent or parent
        node.parent = self.nodes[path[0]].parent
        self.nodes[path[0]] = node
        return True

    def stem(self, limit: int) -> None:
        """Keep at most `limit` revisions of each branch."""
        kept = {rev for leaf in self.leaves() for rev in self.history(leaf)[:limit]}
        self.nodes = {rev: node for rev, node in self.nodes.items() if rev in kept}
        for node in self.nodes.values():
            if node.parent not in kept:
                node.parent = None


class StoredDatabase:
    """One database."""

    def __init__(self, name: str, gzip_text: bool, revs_limit: int) -> None:
        self.name = name
        self.gzip_text = gzip_text
        self.revs_limit = revs_limit
        self.documents: dict[str, StoredDocument] = {}
        self.by_sequence: dict[int, str] = {}
        self.local: dict[str, dict[str, Any]] = {}
        self.sequence = 0
        self.changed = asyncio.Event()

    def touched(self) -> None:
        """Wake the feeds, and who else waits for what is new."""
        self.changed.set()
        self.changed = asyncio.Event()

    def rows(self, since: int) -> Iterator[StoredDocument]:
        """Documents that changed after `since`, in order."""
        for sequence, id in list(self.by_sequence.items()):
            if sequence > since:
                yield self.documents[id]

    def attachment(self, content_type: str, data: bytes, encoding: str | None, revpos: int) -> StoredAttachment:
        """Keep these bytes; text is compressed where the server does that."""
        length = len(gzip.decompress(data)) if encoding == "gzip" else len(data)
        if encoding is None and self.gzip_text and content_type.startswith("text/") and data:
            data, encoding = gzip.compress(data, mtime=0), "gzip"
        return StoredAttachment(content_type, data, length, encoding, revpos)

    def write(self, given: dict[str, Any], new_edits: bool, parts: Iterable[tuple[str, bytes]] = ()) -> str:
        """Write one document, with the parts of a multipart upload in order; returns the revision."""
        body = {key: value for key, value in given.items() if not key.startswith("_")}
        id, deleted = given["_id"], bool(given.get("_deleted"))
        document = self.documents.get(id) or StoredDocument(id)
        path = self._next_path(document, given) if new_edits else _given_path(given)
        if path[0] in document.nodes:
            return path[0]
        attachments = self._attachments(document, path, given.get("_attachments") or {}, parts)
        document.graft(path, Node(None, body, deleted, attachments))
        document.stem(self.revs_limit)
        self.by_sequence.pop(document.sequence, None)
        self.sequence += 1
        document.sequence = self.sequence
        self.by_sequence[self.sequence] = id
        self.documents[id] = document
        self.touched()
        return path[0]

    def _next_path(self, document: StoredDocument, given: dict[str, Any]) -> list[str]:
        leaves, asked = document.leaves(), given.get("_rev")
        if asked is None and leaves and document.nodes[leaves[0]].deleted:
            asked = leaves[0]
        if (asked is None and leaves) or (asked is not None and asked not in leaves):
            raise Refused(409, "conflict", "Document update conflict.")
        content = json.dumps([asked, given], sort_keys=True).encode()
        number = generation(asked) + 1 if asked else 1
        return [f"{number}-{hashlib.md5(content).hexdigest()}", *(document.history(asked) if asked else [])]

    def _attachments(
        self, document: StoredDocument, path: list[str], given: dict[str, Any], parts: Iterable[tuple[str, bytes]]
    ) -> dict[str, StoredAttachment]:
        kept: dict[str, StoredAttachment] = {}
        coming = iter(parts)
        for name, form in given.items():
            if name.startswith("_"):
                raise Refused(400, "bad_request", f"Attachment name '{name}' starts with prohibited character '_'")
            revpos = form.get("revpos", generation(path[0]))
            kind, encoding = form.get("content_type", "application/octet-stream"), form.get("encoding")
            if form.get("stub"):
                kept[name] = self._known(document, path, name)
            elif form.get("follows"):
                part_name, data = next(coming, ("", b""))
                expected = form.get("encoded_length") if encoding else form.get("length")
                if part_name != name or len(data) != expected:
                    raise Refused(400, "bad_request", f"Part {part_name!r} of {len(data)} bytes is not {name!r}")
                kept[name] = self.attachment(kind, data, encoding, revpos)
            else:
                kept[name] = self.attachment(kind, base64.b64decode(form["data"]), encoding, revpos)
        return kept

    def _known(self, document: StoredDocument, path: list[str], name: str) -> StoredAttachment:
        for rev in path[1:]:
            node = document.nodes.get(rev)
            if node is not None and name in node.attachments:
                return node.attachments[name]
        raise Refused(412, "missing_stub", f"Invalid attachment stub in {document.id} for {name}")


def _given_path(given: dict[str, Any]) -> list[str]:
    revisions = given.get("_revisions")
    if revisions is None:
        return [given["_rev"]]
    start: int = revisions["start"]
    return [f"{start - number}-{name}" for number, name in enumerate(revisions["ids"])]
