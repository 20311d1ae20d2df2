"""The options of a replication: keyword arguments, or a document of CouchDB's `_replicator` database; and its id."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal
from urllib.parse import unquote

from jobs_service import JobsError, durations
from jobs_service.replication.contract import ChangesFeed, Seq
from jobs_service.replication.endpoint import parse_endpoint

VERSION: Final = 1
"""The version of ids; checkpoints name it."""

_LENGTH: Final = 32
"""Hexadecimal digits of an id: 128 bits, as CouchDB's."""

_BUILT_IN: Final = ("_view", "_design")

OnMissing = Literal["retry", "fail"]

_Check = Callable[[Any], str | None]
_EMPTY_BY_DEFAULT: Final = frozenset({"create_target_params", "query_params"})
_INTEGERS: Final = frozenset({"worker_processes", "worker_batch_size", "http_connections", "retries_per_request"})
_MILLISECONDS: Final = frozenset({"checkpoint_interval", "connection_timeout"})


# Options


class InvalidReplication(JobsError, ValueError):
    """The options of a replication are invalid; the message names the option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationOptions:
    """The options of a replication; times in seconds.

    Attributes:
        source, target: a URL, or an object as in `_replicator` (url, auth, headers, proxy, tls).
        continuous: go on for ever with new changes of the source.
        create_target: create the target if it is missing.
        create_target_params: parameters for creating it, such as {"q": 8, "partitioned": True}.
        filter: "design document/function", of the source, "_view", or "_design" for the design documents alone.
        query_params: parameters of the filter; `view` names the view of "_view".
        doc_ids: copy only these documents.
        selector: copy only documents that match it.
        winning_revs_only: leave conflicts out.
        since_seq: a sequence of the source to begin after, if there is no checkpoint.
        use_checkpoints: write checkpoints to both databases.
        checkpoint_interval: time between checkpoints, given like every duration.
        use_bulk_get: read many documents with one request, if the source supports it.
        worker_processes: number of batches copied at the same time.
        worker_batch_size: number of documents in a batch.
        http_connections: number of connections to each database at the same time.
        connection_timeout: longest time without a byte of an answer, given like every duration.
        retries_per_request: retries of a failed request.
        max_document_id_length: documents with longer ids (bytes) are not copied; None for any length.
        strict: end with an error when the target refuses a document for good, instead of skipping it.
        on_missing: reaction to a missing database: "retry" for ever, or "fail".
    """

    source: str | Mapping[str, Any]
    target: str | Mapping[str, Any]
    continuous: bool = False
    create_target: bool = False
    create_target_params: Mapping[str, Any] = field(default_factory=dict)
    filter: str | None = None
    query_params: Mapping[str, Any] = field(default_factory=dict)
    doc_ids: tuple[str, ...] | None = None
    selector: Mapping[str, Any] | None = None
    winning_revs_only: bool = False
    since_seq: Seq = None
    use_checkpoints: bool = True
    checkpoint_interval: float = 30.0
    use_bulk_get: bool = True
    worker_processes: int = 4
    worker_batch_size: int = 500
    http_connections: int = 20
    connection_timeout: float = 30.0
    retries_per_request: int = 5
    max_document_id_length: int | None = None
    strict: bool = False
    on_missing: OnMissing = "retry"

    def __post_init__(self) -> None:
        for name in _MILLISECONDS:
            object.__setattr__(self, name, durations.plain(getattr(self, name)))
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            if (problem := check(value)) is not None:
                raise InvalidReplication(f"{name}: {problem}")
        if self.doc_ids is not None:
            object.__setattr__(self, "doc_ids", tuple(sorted(set(self.doc_ids))))
        given = [name for name in ("filter", "doc_ids", "selector") if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidReplication(f"{' and '.join(given)}: only one of them can be given")
        if self.filter == "_view" and (self.view is None or self.view.count("/") != 1):
            raise InvalidReplication('filter: "_view" needs query_params with a view, "design document/view"')
        if self.filter not in (None, *_BUILT_IN) and "/" not in str(self.filter):
            raise InvalidReplication('filter: allowed are "design document/function", "_view" and "_design"')

    @property
    def is_filtered(self) -> bool:
        """Whether only some documents are copied."""
        return self.filter is not None or self.selector is not None or self.doc_ids is not None

    @property
    def view(self) -> str | None:
        """The view whose documents are copied, "design document/view"; None without one."""
        view = self.query_params.get("view") if self.filter == "_view" else None
        return view if isinstance(view, str) else None

    @property
    def filter_place(self) -> tuple[str, str] | None:
        """The id of the filter's design document, and the filter's name; None without one."""
        if self.filter is None or self.filter in _BUILT_IN:
            return None
        design, _, name = self.filter.partition("/")
        return f"_design/{design}", name

    def feed(self) -> ChangesFeed:
        """Return the request for the source's feed of changes."""
        return ChangesFeed(
            continuous=self.continuous,
            style="main_only" if self.winning_revs_only else "all_docs",
            filter=self.filter,
            query_params=self.query_params,
            doc_ids=self.doc_ids,
            selector=self.selector,
            view=self.view,
            heartbeat=min(10.0, self.connection_timeout / 3),
        )

    def id(self, installation: str, filter: str | None) -> str:
        """Return the id of this replication.

        Args:
            installation: the id of the store.
            filter: the code of the filter, or its name if the code has not been read.

        Raises:
            InvalidEndpoint: an endpoint cannot be used.
        """
        return replication_id(
            installation,
            parse_endpoint(self.source, what="source").form_for_id(),
            parse_endpoint(self.target, what="target").form_for_id(),
            filter=filter,
            query_params=self.query_params,
            doc_ids=self.doc_ids,
            selector=self.selector,
            winning_revs_only=self.winning_revs_only,
            since_seq=self.since_seq,
        )

    def gentler(self) -> ReplicationOptions:
        """Return options that put less load on an overloaded server."""
        return replace(
            self,
            checkpoint_interval=min(self.checkpoint_interval, 5.0),
            worker_processes=min(self.worker_processes, 2),
            worker_batch_size=min(self.worker_batch_size, 100),
            http_connections=min(self.http_connections, 5),
        )

    def to_data(self) -> dict[str, Any]:
        """Return the options that differ from the defaults, as plain JSON data; `from_data` takes them."""
        data: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            empty = not value and each.name in _EMPTY_BY_DEFAULT
            if not empty and value != each.default:
                data[each.name] = [*value] if isinstance(value, tuple) else value
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ReplicationOptions:
        """Return options from keyword arguments, or from the result of `to_data`.

        Raises:
            InvalidReplication: an option is unknown or missing, or has an invalid value.
        """
        for name in data:
            if name not in _NAMES:
                raise InvalidReplication(f"{name}: there is no such option; there are {', '.join(sorted(_NAMES))}")
        values = dict(data)
        if isinstance(values.get("doc_ids"), list):
            values["doc_ids"] = tuple(values["doc_ids"])
        for name in ("source", "target"):
            if name not in values:
                raise InvalidReplication(f"{name}: it is missing")
        return cls(**values)

    @classmethod
    def from_document(cls, document: Any) -> ReplicationOptions:
        """Return the options in a document of `_replicator`, or in a request to `_replicate`.

        Times are milliseconds there, ids of documents are percent-encoded, numbers may be texts, and unknown fields are
        ignored, as in CouchDB. Databases of the server itself (a name instead of a URL) are refused.

        Raises:
            InvalidReplication: a field is missing, or has an invalid value.
        """
        if not isinstance(document, Mapping):
            raise InvalidReplication("a replication document is a JSON object")
        if document.get("_replication_state") == "completed":
            raise InvalidReplication("_replication_state: CouchDB has completed it; without this field it runs again")
        if document.get("cancel"):
            raise InvalidReplication("cancel: remove the job instead (jobs-service remove)")
        values = {name: value for name, value in document.items() if name in _NAMES}
        for name in [name for name in ("doc_ids", "filter", "selector", "since_seq") if values.get(name, 0) is None]:
            del values[name]
        for name in _INTEGERS & values.keys():
            values[name] = _integer(name, values[name])
        for name in _MILLISECONDS & values.keys():
            values[name] = _integer(name, values[name]) / 1000
        if isinstance(doc_ids := values.get("doc_ids"), list):
            values["doc_ids"] = tuple(unquote(each) if isinstance(each, str) else each for each in doc_ids)
        _take_proxies(document, values)
        return cls.from_data(values)


def _take_proxies(document: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Put the proxies of a document into its endpoints."""
    both = document.get("proxy") or None
    for end in ("source", "target"):
        own = document.get(f"{end}_proxy") or None
        if both and own:
            raise InvalidReplication(f"proxy and {end}_proxy: only one of them can be given")
        proxy, endpoint = own or both, values.get(end)
        if proxy and endpoint is not None:
            values[end] = {**({"url": endpoint} if isinstance(endpoint, str) else endpoint), "proxy": proxy}


def _integer(name: str, value: Any) -> int:
    try:
        if isinstance(value, str | int) and not isinstance(value, bool):
            return int(value)
    except ValueError:
        pass
    raise InvalidReplication(f"{name}: {value!r}; allowed is an integer")


def _endpoint(value: Any) -> str | None:
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str):
        return "allowed are a URL and an object with a url"
    if not url.lower().startswith(("http://", "https://")):
        # The value is not repeated: it may be a misplaced password.
        return "allowed are URLs that begin with http:// or https://; a name alone is no database here"
    return None


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else f"{value!r}; allowed are true and false"


def _object(value: Any) -> str | None:
    return None if isinstance(value, Mapping) else "allowed is an object"


def _object_or_none(value: Any) -> str | None:
    return None if value is None else _object(value)


def _text_or_none(value: Any) -> str | None:
    return None if value is None or isinstance(value, str) else f"{value!r}; allowed is a text"


def _ids(value: Any) -> str | None:
    if value is None or (isinstance(value, tuple | list) and all(isinstance(each, str) for each in value)):
        return None
    return "allowed is a list of texts"


def _number(least: float, most: float, kind: type[int] | type[float], optional: bool = False) -> _Check:
    def check(value: Any) -> str | None:
        if value is None and optional:
            return None
        is_number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        if is_number and least <= value <= most:
            return None
        name = "an integer" if kind is int else "a number"
        return f"{value!r}; allowed is {name} from {least:g} to {most:g}"

    return check


def _one_of(*allowed: str) -> _Check:
    return lambda value: None if value in allowed else f"{value!r}; allowed are {', '.join(allowed)}"


_CHECKS: Final[dict[str, _Check]] = {
    "source": _endpoint,
    "target": _endpoint,
    "continuous": _flag,
    "create_target": _flag,
    "create_target_params": _object,
    "filter": _text_or_none,
    "query_params": _object,
    "doc_ids": _ids,
    "selector": _object_or_none,
    "winning_revs_only": _flag,
    "use_checkpoints": _flag,
    "checkpoint_interval": _number(0.001, 1e6, float),
    "use_bulk_get": _flag,
    "worker_processes": _number(1, 100, int),
    "worker_batch_size": _number(1, 10_000, int),
    "http_connections": _number(1, 1000, int),
    "connection_timeout": _number(0.001, 1e6, float),
    "retries_per_request": _number(0, 100, int),
    "max_document_id_length": _number(1, 1e9, int, optional=True),
    "strict": _flag,
    "on_missing": _one_of("retry", "fail"),
}
_NAMES: Final = frozenset(each.name for each in fields(ReplicationOptions))


# The id


def replication_id(
    installation: str,
    source: Any,
    target: Any,
    *,
    filter: str | None = None,
    query_params: Mapping[str, Any] | None = None,
    doc_ids: tuple[str, ...] | None = None,
    selector: Mapping[str, Any] | None = None,
    winning_revs_only: bool = False,
    since_seq: Any = None,
) -> str:
    """Return the id of a replication, 32 hexadecimal digits.

    Args:
        installation: the id of the store, so that equal replications of two stores have checkpoints of their own.
        source, target: the endpoints as JSON data, without changeable parts: passwords, headers that carry them.
        filter: the code of the filter function, or the name of a filter with unread code.
        query_params: the parameters of the filter; ignored without a filter.
        doc_ids: the ids of the only documents to copy.
        selector: the selector of the documents to copy.
        winning_revs_only: whether conflicts are left out.
        since_seq: the sequence where the first run begins.
    """
    parts = (
        installation,
        source,
        target,
        None if filter is None else [filter.strip(), dict(query_params or {})],
        None if doc_ids is None else sorted(set(doc_ids)),
        selector,
        winning_revs_only,
        since_seq,
    )
    canonical = json.dumps(["jobs_service replication", VERSION, *parts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_LENGTH]
