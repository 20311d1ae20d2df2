"""The feed of changes as requests and rows."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from jobs_service.replication.contract import Change, ChangesFeed, EndOfChanges, Heartbeat, Seq
from jobs_service.replication.errors import ProtocolError, RequestFailed, TooLarge
from jobs_service.replication.json_text import decoded, encoded

PAGE: Final = 2000
"""Rows requested at once: some servers send a whole feed as one line, which must be held."""

_ROW_BYTES: Final = 40
_REV_BYTES: Final = 12
_MOST_LINE: Final = 64 << 20
_BEGIN: Final = b'{"results":['
_OF_VIEWS: Final = {"key", "keys", "startkey", "endkey", "start_key", "end_key"}


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
    if feed.seq_interval is not None:
        query.append(("seq_interval", str(feed.seq_interval)))
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


async def rows_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[Change | EndOfChanges | Heartbeat]:
    """Yield the rows of a normal feed as they come, each in a line as CouchDB writes them, or all in one.

    Raises:
        RequestFailed: the feed is cut off.
        TooLarge: a line is too long to be held.
    """
    has_begun = False
    async for line in _split(chunks):
        if not line.strip():
            yield Heartbeat()
        elif not has_begun:
            if line.strip() != _BEGIN:
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


async def lines_of(chunks: AsyncIterator[bytes]) -> AsyncIterator[Change | EndOfChanges | Heartbeat]:
    """Yield the rows of a continuous feed as they come. Raises `RequestFailed` if it is cut off."""
    async for line in _split(chunks):
        if not line.strip():
            yield Heartbeat()
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
