"""Answers to many questions at once, in the forms that servers give them."""

from typing import Any

import pytest

from jobs_service.replication.contract import ProtocolError, RevisionRefusal
from jobs_service.replication.revisions import assigned, refusal_of


def _ok(id: str, *revs: str) -> dict[str, Any]:
    start, ids = int(revs[0].partition("-")[0]), [rev.partition("-")[2] for rev in revs]
    return {"ok": {"_id": id, "_rev": revs[0], "_revisions": {"start": start, "ids": ids}}}


def _revs(wanted: list[tuple[str, str, tuple[str, ...]]], results: list[Any]) -> list[list[str | None]]:
    return [[each.rev for each in answer] for answer in assigned(wanted, results)]


def test_answers_in_the_order_of_the_questions() -> None:
    results = [{"id": "x", "docs": [_ok("x", "2-b", "1-a")]}, {"id": "y", "docs": [{"missing": "1-a"}]}]
    assert _revs([("x", "1-a", ()), ("y", "1-a", ())], results) == [["2-b"], ["1-a"]]


@pytest.mark.parametrize(
    "results",
    [
        [{"id": "x", "docs": [_ok("x", "1-b")]}, {"id": "x", "docs": [_ok("x", "2-c", "1-a")]}],
        [{"id": "x", "docs": [_ok("x", "1-b"), _ok("x", "2-c", "1-a")]}],
    ],
)
def test_answers_about_several_revisions_of_one_document(results: list[Any]) -> None:
    wanted = [("x", "1-a", ()), ("x", "1-b", ()), ("x", "1-z", ())]
    answers = assigned(wanted, results)
    assert [[each.rev for each in answer] for answer in answers] == [["2-c"], ["1-b"], ["1-z"]]
    assert answers[2] == [RevisionRefusal("x", "1-z", "not_found", "not in the answer")]


@pytest.mark.parametrize("results", [[7], [{"id": "x"}], [{"id": "x", "docs": {}}]])
def test_an_answer_that_is_none(results: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        assigned([("x", "1-a", ())], results)


def test_an_answer_about_another_document_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="another"):
        assigned([("x", "1-a", ())], [{"id": "x", "docs": [_ok("y", "1-a")]}])


def test_refusals_of_couchdb_and_pouchdb() -> None:
    couch = {"id": "x", "rev": "1-a", "error": "forbidden", "reason": "no"}
    pouch = {"id": "x", "status": 403, "name": "forbidden", "message": "no", "error": True}
    assert refusal_of(couch) == RevisionRefusal("x", "1-a", "forbidden", "no")
    assert refusal_of(pouch) == RevisionRefusal("x", None, "forbidden", "no", 403)
