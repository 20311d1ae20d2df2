"""A database behind CouchDB's HTTP protocol: the operations of the pipeline and the feed of changes, as requests."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from jobs_service.replication import revisions
from jobs_service.replication.bodies import MOST_SHOWN, Parts, content_type, decoded, encoded, reason_of, related
from jobs_service.replication.contract import (
    BadBatch,
    Change,
    ChangesFeed,
    DatabaseInfo,
    DatabaseMissing,
    Document,
    EndOfChanges,
    FeedHeartbeat,
    Forbidden,
    InvalidEndpoint,
    LocalConflict,
    Missing,
    MissingStub,
    NotSupported,
    ProtocolError,
    ReplicationError,
    RequestFailed,
    RevisionRefusal,
    Seq,
    TooLarge,
    Unauthorized,
    UploadBroken,
)
from jobs_service.replication.endpoint import DatabaseAddress, SecretSource, parse_endpoint
from jobs_service.replication.http import SHARED, Answer, AnswerStream, HttpClient, HttpSettings, RateLimiter
from jobs_service.replication.revisions import assigned, of_json, of_multipart, queries, refusal_of, revisions_query

PAGE: Final = 2000
"""Rows requested at once: some servers send a whole feed as one line, which must be held."""

_ROW_BYTES: Final = 40
_REV_BYTES: Final = 12
_MOST_LINE: Final = 64 << 20
_FEED_BEGINS: Final = b'{"results":['
_OF_VIEWS: Final = {"key", "keys", "startkey", "endkey", "start_key", "end_key"}

MOST_ANSWER: Final = 4 << 20
"""Most bytes of the answer to one `_bulk_get`."""

_LONGEST_URL: Final = 7000
_SHORTEST_URL: Final = 200
_PROBE: Final = "jobs_service-probe"
_GONE: Final = ("no_db_file", "Database does not exist.")
_SILENT_BEATS: Final = 3

_ERROR_NAMES: Final = {401: "unauthorized", 403: "forbidden", 413: "too_large", 415: "unsupported_media_type"}


# The database


async def open_database(
    given: str | Mapping[str, Any] | DatabaseAddress,
    *,
    what: str = "endpoint",
    secrets: SecretSource | None = None,
    settings: HttpSettings | None = None,
) -> HttpDatabase:
    """Return a database for an endpoint, its secrets resolved. Raises `InvalidEndpoint`."""
    endpoint = given if isinstance(given, DatabaseAddress) else parse_endpoint(given, what=what)
    return HttpDatabase(await endpoint.resolved(secrets), settings)


class HttpDatabase:
    """One end of a replication. Close it.

    Methods retry requests where that is safe, and raise a `ReplicationError` in the end. After an error with
    `transient` set another call may succeed later.
    """

    def __init__(
        self,
        endpoint: DatabaseAddress,
        settings: HttpSettings | None = None,
        limiter: RateLimiter = SHARED,
        most_answer: int = MOST_ANSWER,
    ) -> None:
        self._http = HttpClient(endpoint, settings, limiter)
        self._most_answer = most_answer
        self._longest_url = _LONGEST_URL
        self._broken: dict[tuple[str, str], int] = {}
        """Number of broken uploads by document and revision: the third try asks before it sends."""
        self._asks_first = True

    @property
    def endpoint(self) -> DatabaseAddress:
        """The endpoint, with its secrets."""
        return self._http.endpoint

    @property
    def masked(self) -> str:
        """The address, for display."""
        return self._http.endpoint.masked

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def info(self) -> DatabaseInfo:
        """Return the database's description of itself. Raises `DatabaseMissing`."""
        answer = await self._http.request("GET")
        form = _form(answer)
        if answer.status != 200:
            raise self._error("GET", "", answer)
        if "update_seq" not in form:
            raise DatabaseMissing(f"there is no database at {self.masked}")
        start, count = str(form.get("instance_start_time", "0")), form.get("doc_count", 0)
        return DatabaseInfo(str(form.get("db_name", "")), form["update_seq"], start, count, form)

    async def create(self, parameters: Mapping[str, Any] | None = None) -> bool:
        """Create the database, with `parameters` in the query (q, n, partitioned). Return False if it existed."""
        query = [
            (name, value if isinstance(value, str) else json.dumps(value)) for name, value in (parameters or {}).items()
        ]
        answer = await self._http.request("PUT", query=query)
        if answer.status == 412:
            return False
        if answer.status not in (200, 201, 202):
            raise self._error("PUT", "", answer)
        return True

    async def changes(
        self, since: Seq, feed: ChangesFeed
    ) -> AsyncGenerator[Change | EndOfChanges | FeedHeartbeat, None]:
        """Yield the rows after `since`; a normal feed ends with `EndOfChanges`.

        Close the iterator (`aclosing`). There are no retries here: after an error begin again from the last sequence.
        """
        if feed.limit is None and feed.until is None:
            method, query, body = feed_request(since, feed, None)
            silent = _SILENT_BEATS * feed.heartbeat
            with suppress(TooLarge):  # a server that writes the whole feed as one line must be asked for parts
                async with self._http.stream(
                    method, "/_changes", query=query, body=body, read_timeout=silent
                ) as stream:
                    await self._expect(stream, method, "/_changes")
                    async for row in (lines_of if feed.continuous else rows_of)(stream.chunks):
                        yield row
                return
        left = feed.limit
        while True:
            count = PAGE if left is None else min(PAGE, left)
            method, query, body = feed_request(since, feed, count)
            answer = await self._http.request(method, "/_changes", query=query, body=body)
            if answer.status != 200:
                raise self._error(method, "/_changes", answer)
            rows, end = page_of(answer.body)
            for row in rows:
                yield row
            left = None if left is None else left - len(rows)
            is_there = feed.until is not None and type(end.last_seq) is int and end.last_seq >= feed.until
            if len(rows) < count and feed.until is not None and not is_there:
                # PouchDB skips documents outside of `doc_ids` without counting them.
                end = replace(end, last_seq=feed.until)
            if len(rows) < count or left == 0 or is_there:
                yield end
                return
            since = end.last_seq

    async def revs_diff(self, revs: Mapping[str, Sequence[str]]) -> dict[str, Missing]:
        """Return the revisions that the database lacks, by document id.

        Raises `BadBatch` if the database refuses some document ids: divide the request.
        """
        answer = await self._post("/_revs_diff", encoded(revs))
        if answer.status == 400:
            raise BadBatch(f"{self.masked} refuses names of documents: {self._reason(answer)}", status=400)
        if answer.status != 200:
            raise self._error("POST", "/_revs_diff", answer)
        found: dict[str, Missing] = {}
        for id, form in _form(answer).items():
            if not isinstance(form, Mapping):
                raise ProtocolError("an answer of _revs_diff lacks an object where one belongs")
            found[id] = Missing(tuple(form.get("missing", ())), tuple(form.get("possible_ancestors", ())))
        return found

    async def bulk_get(
        self, wanted: Sequence[tuple[str, str, Sequence[str]]], *, inline: bool = False
    ) -> list[list[Document | RevisionRefusal]]:
        """Return documents by (id, revision, ancestors at the target), in order.

        Attachments are stubs; with `inline`, attachments that no ancestor has come as `data`.

        Raises `NotSupported` if the server has no such request, `TooLarge` if the answer exceeds the bound in bytes of
        this database: ask for fewer documents.
        """
        docs = [{"id": id, "rev": rev} | ({"atts_since": list(since)} if since else {}) for id, rev, since in wanted]
        query = [("revs", "true"), ("latest", "true"), ("attachments", "true" if inline else "false")]
        if not inline:
            query.append(("att_encoding_info", "true"))
        answer = await self._post("/_bulk_get", encoded({"docs": docs}), query, most=self._most_answer)
        if answer.status in (400, 404, 405, 415, 501):
            if self._is_gone(answer):
                raise self._error("POST", "/_bulk_get", answer)
            raise NotSupported(f"{self.masked} has no _bulk_get", status=answer.status)
        if answer.status != 200:
            raise self._error("POST", "/_bulk_get", answer)
        results = _form(answer).get("results")
        if not isinstance(results, list):
            raise ProtocolError("an answer of _bulk_get lacks its results")
        return assigned(wanted, results)

    async def open_revs(
        self, id: str, revs: Sequence[str], ancestors: Sequence[str] = ()
    ) -> AsyncGenerator[Document | RevisionRefusal, None]:
        """Yield these revisions of one document, with attachments streamed unless one of `ancestors` has them.

        Each document's attachments must be read, or left, before the next document is requested. Close the iterator
        (`aclosing`). After an error in the middle begin again with the remaining revisions.
        """
        path = _path(id)
        groups = self._groups(path, revs, ancestors)
        while groups:
            some, known = groups[0]
            headers = {"Accept": "multipart/mixed, application/json"}
            async with self._http.stream("GET", path, query=revisions_query(some, known), headers=headers) as stream:
                if stream.status == 414:
                    left = [rev for group, _ in groups for rev in group]
                    self._longest_url //= 2
                    if self._longest_url < _SHORTEST_URL:
                        raise RequestFailed(f"{self.masked} finds every address too long", status=414)
                    groups = self._groups(path, left, ancestors)
                    continue
                async with aclosing(self._revisions(id, stream, some, known)) as documents:
                    async for each in documents:
                        yield each
            groups = groups[1:]

    async def bulk_docs(self, documents: Sequence[bytes]) -> list[RevisionRefusal]:
        """Write documents, each encoded as JSON, with their own revisions; return the refusals.

        Raises `TooLarge` or `BadBatch` if the whole request was refused and nothing was written: divide it.
        """
        body = b'{"new_edits":false,"docs":[' + b",".join(documents) + b"]}"
        answer = await self._post("/_bulk_docs", body)
        if answer.status == 413:
            raise TooLarge(f"{self.masked} finds {len(documents)} documents of {len(body)} bytes too large", status=413)
        if answer.status == 400:
            raise BadBatch(f"{self.masked} refuses a batch of documents: {self._reason(answer)}", status=400)
        if answer.status not in (200, 201, 202, 417):
            raise self._error("POST", "/_bulk_docs", answer)
        results = decoded(answer.body)
        if not isinstance(results, list):
            raise ProtocolError("an answer of _bulk_docs is no list")
        refusals = [refusal_of(each) for each in results if isinstance(each, Mapping) and each.get("error")]
        return [replace(each, reason=self.endpoint.redacted(each.reason)) for each in refusals]

    async def put(self, document: Document) -> RevisionRefusal | None:
        """Write one document with its attachments, streamed.

        Attachments can be read once: with `attachments` a failure raises an error with `transient` set, and the caller
        opens the revision again. Raises `MissingStub`: open it again, without ancestors.
        """
        path, query = _path(document.id), [("new_edits", "false")]
        key = (document.id, document.rev)
        if not document.attachments:
            answer = await self._http.request("PUT", path, query=query, body=encoded(document.body))
        else:
            kind, length, chunks = related(document.body, document.attachments)
            headers = {"Content-Type": kind, "Content-Length": str(length)}
            asks = self._asks_first and self._broken.get(key, 0) > 1
            try:
                answer = await self._http.upload(path, query=query, headers=headers, chunks=chunks, expect=asks)
            except UploadBroken:
                self._broken[key] = self._broken.get(key, 0) + 1
                self._asks_first = not asks  # If asking does not help, the server may not support it.
                raise
        self._broken.pop(key, None)
        return self._written(document, path, answer)

    async def document(self, id: str) -> dict[str, Any] | None:
        """Return a document's winning revision without attachments, such as a filter's design document; or None."""
        return await self._maybe(_path(id))

    async def all_documents(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the winning revisions of all documents, in the order of their ids."""
        query = [("include_docs", "true"), ("limit", str(PAGE))]
        after: list[tuple[str, str]] = []
        while True:
            answer = await self._http.request("GET", "/_all_docs", query=query + after)
            if answer.status != 200:
                raise self._error("GET", "/_all_docs", answer)
            rows = _form(answer).get("rows") or []
            for row in rows:
                yield row["doc"]
            if len(rows) < PAGE:
                return
            after = [("startkey", json.dumps(rows[-1]["id"])), ("skip", "1")]

    async def local(self, id: str) -> dict[str, Any] | None:
        """Return the document `_local/ID` (give the id without the prefix), or None."""
        return await self._maybe(_local_path(id))

    async def put_local(self, id: str, body: Mapping[str, Any]) -> str:
        """Write `_local/ID` (with the `_rev` of an existing document) and return its new revision.

        Raises `LocalConflict`.
        """
        path = _local_path(id)
        answer = await self._http.request("PUT", path, body=encoded({**body, "_id": f"_local/{id}"}))
        if answer.status == 409:
            raise LocalConflict(f"{self.masked}{path} was written by another", status=409)
        if answer.status not in (200, 201, 202):
            raise self._error("PUT", path, answer)
        return str(_form(answer).get("rev", ""))

    async def takes_writes(self) -> bool:
        """Return whether the database takes writes now; the check writes a document `_local/jobs_service-probe`."""
        try:
            there = await self.local(_PROBE) or {}
            await self.put_local(_PROBE, {name: there[name] for name in ("_rev",) if name in there})
        except LocalConflict:
            return True
        except ReplicationError:
            return False
        return True

    async def ensure_full_commit(self) -> str:
        """Make all writes durable; return the instance's start time ("0" if the server has none)."""
        answer = await self._post("/_ensure_full_commit", b"")
        if answer.status not in (200, 201, 202):
            raise self._error("POST", "/_ensure_full_commit", answer)
        return str(_form(answer).get("instance_start_time", "0"))

    async def _post(
        self, path: str, body: bytes, query: Sequence[tuple[str, str]] = (), most: int | None = None
    ) -> Answer:
        return await self._http.request("POST", path, query=query, body=body, most=most)

    async def _maybe(self, path: str) -> dict[str, Any] | None:
        answer = await self._http.request("GET", path)
        if answer.status == 404 and not self._is_gone(answer):
            return None
        if answer.status != 200:
            raise self._error("GET", path, answer)
        form = decoded(answer.body)
        if not isinstance(form, dict):
            raise ProtocolError(f"the answer to GET {self.masked}{path} is no object")
        return form

    def _groups(
        self, path: str, revs: Sequence[str], ancestors: Sequence[str]
    ) -> list[tuple[Sequence[str], Sequence[str]]]:
        fixed = len(self._http.endpoint.url + path) + len(
            "?revs=true&open_revs=%5B%5D&latest=true&att_encoding_info=true&atts_since=%5B%5D"
        )
        return queries(revs, ancestors, self._longest_url - fixed)

    async def _revisions(
        self, id: str, stream: AnswerStream, revs: Sequence[str], ancestors: Sequence[str]
    ) -> AsyncGenerator[Document | RevisionRefusal, None]:
        kind, parameters = content_type(stream.headers.get("Content-Type", "application/json"))
        if stream.status == 200 and kind.startswith("multipart/"):
            async with aclosing(of_multipart(id, Parts(stream.chunks, parameters.get("boundary", "")))) as documents:
                async for each in documents:
                    yield each
            return
        body = bytearray()
        async for chunk in stream.chunks:
            body += chunk
            if len(body) > revisions.MOST_DOCUMENT:
                raise TooLarge(f"the answer about document {id!r} has more than {revisions.MOST_DOCUMENT} bytes")
        answer = Answer(stream.status, stream.headers, body)
        if stream.status == 404 and not self._is_gone(answer):
            for rev in revs:
                yield RevisionRefusal(id, rev, "not_found", self._reason(answer), 404)
            return
        if stream.status != 200:
            raise self._error("GET", _path(id), answer)
        for each in of_json(id, decoded(answer.body), ancestors, partial(self._attachment, id)):
            yield each

    async def _attachment(self, id: str, name: str, rev: str, encoding: str | None) -> AsyncGenerator[bytes, None]:
        path = f"{_path(id)}/{quote(name, safe='')}"
        headers = {"Accept": "*/*", "Accept-Encoding": encoding or "identity"}
        async with self._http.stream("GET", path, query=[("rev", rev)], headers=headers) as stream:
            await self._expect(stream, "GET", path)
            async for chunk in stream.chunks:
                yield chunk

    async def _expect(self, stream: AnswerStream, method: str, path: str) -> None:
        if stream.status != 200:
            body = b"".join([chunk async for chunk in stream.chunks])
            raise self._error(method, path, Answer(stream.status, stream.headers, body))

    def _written(self, document: Document, path: str, answer: Answer) -> RevisionRefusal | None:
        status, form = answer.status, _form(answer)
        if status in (200, 201, 202):
            return None
        error, reason = str(form.get("error", "")), self.endpoint.redacted(str(form.get("reason", "")))
        if status == 412 and error == "missing_stub":
            raise MissingStub(f"{self.masked} lacks an attachment of {document.id!r}: {reason}", status=412)
        if status in (400, 401, 403, 409, 413, 415, 417):
            return RevisionRefusal(
                document.id, document.rev, error or _ERROR_NAMES.get(status, str(status)), reason, status
            )
        raise self._error("PUT", path, answer)

    def _reason(self, answer: Answer) -> str:
        said = reason_of(answer.body) if answer.status >= 400 else ""
        return self.endpoint.redacted(said)[:MOST_SHOWN] or "no reason given"

    def _is_gone(self, answer: Answer) -> bool:
        return answer.status == 404 and _form(answer).get("reason") in _GONE

    def _error(self, method: str, path: str, answer: Answer) -> ReplicationError:
        status, reason = answer.status, self._reason(answer)
        what = f"{method} {self.masked}{path} was answered {status}: {reason}"
        if status == 401:
            return Unauthorized(what, status=status)
        if status == 403:
            return Forbidden(what, status=status)
        if status == 404 and (path == "" or self._is_gone(answer)):
            return DatabaseMissing(f"there is no database at {self.masked}: {reason}", status=status)
        if status == 413:
            return TooLarge(what, status=status)
        if path == "" and status == 400:
            return InvalidEndpoint(what, status=status)
        return RequestFailed(what, status=status)


def _path(id: str) -> str:
    prefix, _, rest = id.partition("/")
    if prefix == "_design" and rest:
        return f"/_design/{quote(rest, safe='')}"
    return f"/{quote(id, safe='')}"


def _local_path(id: str) -> str:
    return f"/_local/{quote(id, safe='')}"


def _form(answer: Answer) -> Mapping[str, Any]:
    try:
        form = decoded(answer.body)
    except ProtocolError:
        if answer.status < 400:
            raise
        return {}  # A proxy answers errors with HTML pages.
    return form if isinstance(form, Mapping) else {}


# The feed of changes


def feed_request(since: Seq, feed: ChangesFeed, limit: int | None) -> tuple[str, list[tuple[str, str]], bytes | None]:
    """Return the method, the query, and the body of a request for the feed."""
    kind = "continuous" if feed.continuous else "longpoll" if feed.longpoll else "normal"
    query = [("feed", kind), ("style", feed.style)]
    query.append(("since", since if isinstance(since, str) else json.dumps(since, separators=(",", ":"))))
    if feed.longpoll:  # a proxy may hold heartbeats back, so the answer ends by itself
        query.append(("timeout", str(max(1, round(feed.heartbeat * 1000)))))
    elif limit is None:
        query.append(("heartbeat", str(max(1, round(feed.heartbeat * 1000)))))
    if limit is not None:
        query.append(("limit", str(limit)))
    if feed.doc_ids is not None:
        return "POST", [*query, ("filter", "_doc_ids")], encoded({"doc_ids": list(feed.doc_ids)})
    if feed.selector is not None:
        return "POST", [*query, ("filter", "_selector")], encoded({"selector": feed.selector})
    if feed.filter is not None:
        query.append(("filter", feed.filter))
        if feed.view is not None:
            query.append(("view", feed.view))
        taken = {name for name, _ in query}
        query += [(name, _text(feed, name, value)) for name, value in feed.query_params.items() if name not in taken]
    return "GET", query, None


def _text(feed: ChangesFeed, name: str, value: Any) -> str:
    if isinstance(value, str) and not (feed.filter == "_view" and name in _OF_VIEWS):
        return value
    return json.dumps(value, separators=(",", ":"))


def page_of(body: bytes | bytearray) -> tuple[list[Change], EndOfChanges]:
    """Return the rows and the end of a normal feed."""
    form = decoded(body)
    rows = form.get("results") if isinstance(form, dict) else None
    if not isinstance(rows, list) or "last_seq" not in form:
        raise ProtocolError("a feed of changes lacks its results or its end")
    pending = form.get("pending")
    return [_change(row) for row in rows], EndOfChanges(form["last_seq"], pending if type(pending) is int else None)


async def rows_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[Change | EndOfChanges | FeedHeartbeat]:
    """Yield the rows of a normal feed as they come, each in a line as CouchDB writes them, or all in one.

    Raises:
        RequestFailed: the feed is cut off.
        TooLarge: a line is too long to be held.
    """
    has_begun = False
    async for line in _split(chunks):
        if not line.strip():
            yield FeedHeartbeat()
        elif not has_begun:
            if line.strip() != _FEED_BEGINS:
                rows, end = page_of(line)
                for row in rows:
                    yield row
                yield end
                return
            has_begun = True
        elif line.startswith(b"{"):
            yield _change(decoded(line.rstrip(b", \r")))
        elif rest := line.lstrip(b"], \r"):
            _, end = page_of(b'{"results":[],' + rest)
            yield end
            return
    raise RequestFailed("the feed of changes was cut off", transient=True)


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[Change | EndOfChanges | FeedHeartbeat]:
    """Yield the rows of a continuous feed as they come. Raises `RequestFailed` if it is cut off."""
    async for line in _split(chunks):
        if not line.strip():
            yield FeedHeartbeat()
            continue
        row = decoded(line)
        if isinstance(row, dict) and "last_seq" in row and "id" not in row:
            yield EndOfChanges(row["last_seq"], row.get("pending"))
            return
        yield _change(row)
    raise RequestFailed("the feed of changes was cut off", transient=True)


async def _split(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines, also a whole last line without a line feed."""
    rest = bytearray()
    async for chunk in chunks:
        searched = len(rest)
        rest += chunk
        end = rest.find(b"\n", searched)
        if (len(rest) if end < 0 else end) > _MOST_LINE:
            raise TooLarge(f"a line of the feed of changes has more than {_MOST_LINE} bytes")
        if end < 0:
            continue
        *lines, rest = rest.split(b"\n")
        for line in lines:
            yield bytes(line)
    if rest.endswith(b"}"):
        yield bytes(rest)


def _change(row: Any) -> Change:
    try:
        revs = [each["rev"] for each in row["changes"]]
        id: str = row["id"]
        seq = row["seq"]
    except (KeyError, TypeError):
        raise ProtocolError(f"a row of the feed of changes is not one: {_shown(row)}") from None
    if row.get("removed") is True:
        revs = revs[1:]  # The source has lost the body of the first revision.
    size = _ROW_BYTES + len(id) + sum(len(rev) + _REV_BYTES for rev in revs) + len(str(seq))
    return Change(seq, id, tuple(revs), bool(row.get("deleted")), size)


def _shown(row: Any) -> str:
    if isinstance(row, Mapping) and "error" in row:
        return f"{row['error']} {row.get('reason', '')}"[:200]
    return str(row)[:100]
