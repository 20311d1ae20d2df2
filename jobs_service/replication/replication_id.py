"""The id of a replication: equal for equal replications, so that a checkpoint is found again and no job runs twice.

A change of the hashed parts makes every replication begin from the start. Raise VERSION then, and keep the previous
version in `_VERSIONS`: its checkpoints are found and written anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

VERSION: Final = 1
"""The present version of ids; checkpoints name it."""

_LENGTH: Final = 32
"""Hexadecimal digits of an id: 128 bits, as CouchDB's."""


def replication_ids(installation: str, source: Any, target: Any, **what: Any) -> list[str]:
    """Return the ids of a replication, of all versions, newest first; see `replication_id`."""
    return [replication_id(installation, source, target, version=version, **what) for version in range(VERSION, 0, -1)]


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
    version: int = VERSION,
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
        version: the version of the id.
    """
    return _VERSIONS[version](
        installation,
        source,
        target,
        None if filter is None else [filter.strip(), dict(query_params or {})],
        None if doc_ids is None else sorted(set(doc_ids)),
        None if selector is None else normal_selector(selector),
        winning_revs_only,
        since_seq,
    )


def normal_selector(selector: Mapping[str, Any]) -> Any:
    """Return the normal form of a selector: equal for selectors that differ in notation only.

    The order of names does not matter, `{"name": "x"}` is `{"name": {"$eq": "x"}}`, and `{"a": {"b": 1}}` is
    `{"a.b": {"$eq": 1}}`.
    """
    fields: dict[str, Any] = {}
    for name, value in selector.items():
        if name.startswith("$"):
            fields[name] = _operand(value)
        else:
            fields.update(_conditions(name, value))
    return dict(sorted(fields.items()))


def _operand(value: Any) -> Any:
    """Return the normal form of the operand of $and, $not and the like."""
    if isinstance(value, Mapping):
        return normal_selector(value)
    if isinstance(value, list | tuple):
        return [_operand(each) for each in value]
    return value


def _conditions(path: str, value: Any) -> dict[str, Any]:
    """Return the conditions on a field, with each field named by its whole path."""
    if not isinstance(value, Mapping) or not value:
        return {path: {"$eq": value}}
    operators = {name: each for name, each in value.items() if name.startswith("$")}
    found = {path: dict(sorted(operators.items()))} if operators else {}
    for name, each in value.items():
        if name not in operators:
            found.update(_conditions(f"{path}.{name}", each))
    return found


def _version_1(*parts: Any) -> str:
    canonical = json.dumps(["jobs_service replication", 1, *parts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_LENGTH]


_VERSIONS: Final[dict[int, Callable[..., str]]] = {1: _version_1}
