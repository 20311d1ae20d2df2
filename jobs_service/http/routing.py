"""Finds the endpoint of a request by its path as it was sent: an encoded slash stays within its segment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from jobs_service import names
from jobs_service.http.endpoint import Endpoint
from jobs_service.http.refusals import Refusal

_SHORT: Final = {"type": ("type",), "job": ("type", "id")}
"""Names that `/v1/type` and `/v1/job` take from the query instead of the path."""


class Found(NamedTuple):
    """The target of a path.

    Attributes:
        methods: the endpoints by method.
        names: the types and ids in the path.
        used: parameters of the query that stand for segments of the path.
    """

    methods: Mapping[str, Endpoint]
    names: dict[str, Any]
    used: tuple[str, ...]


class Routes:
    """The endpoints by the shape of their paths."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._root: dict[str, Any] = {}
        for each in endpoints:
            node = self._root
            for segment in each.path.split("/")[1:]:
                node = node.setdefault(segment, {})
            node.setdefault("", {})[each.method] = each

    def find(self, path: bytes, query: Mapping[str, str]) -> Found | None:
        """Return the target of a path; None for none.

        Args:
            path: as it was sent, without the mount point of the application.
            query: of the request.

        Raises:
            Refusal: a segment, or a parameter that stands for one, is no valid name.
        """
        segments = path.split(b"/")[1:]
        used: tuple[str, ...] = ()
        given: list[str] = []
        if len(segments) >= 2 and segments[0] == b"v1" and (short := segments[1].decode("latin-1")) in _SHORT:
            used = _SHORT[short]
            missing = [name for name in used if name not in query]
            if missing:
                raise Refusal("bad-request", f"the query lacks {' and '.join(missing)}: /v1/{short}?type=..., as texts")
            given = [query[name] for name in used]
            head = [b"v1", b"types", b"{type}"] + ([b"jobs", b"{id}"] if short == "job" else [])
            segments = head + segments[2:]
        found: dict[str, Any] = {}
        node = self._root
        for segment in segments:
            literal = segment.decode("latin-1")
            if literal in node and not literal.startswith("{") and literal:
                node = node[literal]
                continue
            name = next((key for key in node if key.startswith("{")), None)
            if name is None or not segment:
                return None
            text = given.pop(0) if given and literal.startswith("{") else _decoded(segment)
            found[name[1:-1]] = text if name == "{problem}" else _name(text)
            node = node[name]
        methods = node.get("")
        return None if methods is None else Found(methods, found, used)


def path_of(scope: Mapping[str, Any]) -> bytes:
    """Return the path of a request as it was sent, without the mount point of the application."""
    root: str = scope.get("root_path", "")
    raw: bytes = scope.get("raw_path") or quote(scope["path"], safe="/:@!$&'()*+,;=~%").encode()
    raw = raw.partition(b"?")[0]
    # A proxy may have stripped its part of the path: then the path begins with the application's mount point.
    below = root.removeprefix(scope.get("app_root_path", ""))
    for mounted in (each for path in (root, below) for each in (path.encode("utf-8"), quote(path).encode())):
        if mounted and (raw == mounted or raw.startswith(mounted + b"/")):
            return raw[len(mounted) :] or b"/"
    return raw


def query_of(scope: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the query of a request.

    Raises:
        Refusal: it is not UTF-8, or has very many parts.
    """
    try:
        text = scope.get("query_string", b"").decode("ascii")
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=2000)
    except ValueError:  # of UTF-8 as well
        raise Refusal("bad-request", "the query is not UTF-8, percent-encoded, or has more than 2000 parts") from None


def _decoded(segment: bytes) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise Refusal("bad-request", "a segment of the path is not UTF-8, percent-encoded") from None


def _name(text: str) -> Any:
    try:
        return names.parsed(text)
    except (ValueError, RecursionError) as error:
        raise Refusal("bad-request", f"a segment of the path is no name: {error}") from None
