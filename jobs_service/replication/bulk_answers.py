"""Answers of `_bulk_get` and `_bulk_docs`."""

from collections.abc import Mapping, Sequence
from typing import Any

from jobs_service.replication.contract import Document, Refusal
from jobs_service.replication.errors import ProtocolError
from jobs_service.replication.revisions import document_of, missing


def refusal_of(form: Mapping[str, Any]) -> Refusal:
    """Return the refusal of a write, from any of the servers' forms."""
    error = form["error"] if isinstance(form["error"], str) else form.get("name", "unknown")
    status = form.get("status")
    reason = str(form.get("reason") or form.get("message") or "")
    return Refusal(
        str(form.get("id", "")), form.get("rev"), str(error), reason, status if type(status) is int else None
    )


def assigned(
    wanted: Sequence[tuple[str, str, Sequence[str]]], results: Sequence[Any]
) -> list[list[Document | Refusal]]:
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
    by_id: dict[str, list[Document | Refusal]] = {}
    for id, docs in forms:
        by_id.setdefault(id, []).extend(_found(id, form) for form in docs)
    found: list[list[Document | Refusal]] = []
    for id, rev, _ in wanted:
        mine = [each for each in by_id.get(id, ()) if each.rev == rev or _is_ancestor(rev, each)]
        found.append(mine or [Refusal(id, rev, "not_found", "not in the answer")])
    return found


def _is_ancestor(rev: str, found: Document | Refusal) -> bool:
    if isinstance(found, Refusal):
        return False
    revisions = found.body.get("_revisions") or {}
    number, _, name = rev.partition("-")
    ids, at = revisions.get("ids", []), revisions.get("start", 0) - int(number)
    return bool(0 <= at < len(ids) and ids[at] == name)


def _found(id: str, form: Any) -> Document | Refusal:
    if isinstance(form, Mapping) and isinstance(form.get("ok"), dict):
        return document_of(id, form["ok"])
    return missing(id, form if isinstance(form, Mapping) else {})
