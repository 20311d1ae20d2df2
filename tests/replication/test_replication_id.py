"""Ids of replications: what changes them, what does not, and their values, which must stay as they are."""

from typing import Any

import pytest

from jobs_service.replication.options import VERSION, replication_id

STORE, SOURCE, TARGET = "an installation", ["http", "source.example", 5984, "/db"], "the target"

GOLDEN: list[tuple[str, dict[str, Any]]] = [
    ("f943f481a6172a1cd5df3bb36759de24", {}),
    ("96f9a81fc1c0b85e97aca69c6a0a703e", {"filter": "function(doc) { return doc.ok; }"}),
    (
        "16aca50eccb932d09b11fe55b3ee4afe",
        {"filter": "function(doc) { return doc.ok; }", "query_params": {"b": 2, "a": "1"}},
    ),
    ("e879b2799708418341652ac547c1a06a", {"doc_ids": ("b", "a")}),
    ("19a3ae1e9757d2273758ba7fe5ffd66f", {"selector": {"year": {"$gt": 2000}, "name": "Ångström"}}),
    ("69b795940933a4ff95055c60be544591", {"winning_revs_only": True}),
    ("db934afaa286759b9836de8313b40105", {"since_seq": "12-abc"}),
]


@pytest.mark.parametrize(("id", "what"), GOLDEN)
def test_ids_stay_as_they_are(id: str, what: dict[str, Any]) -> None:
    """A value that changes makes every replication of its kind start from the beginning: raise the version instead."""
    assert VERSION == 1
    assert replication_id(STORE, SOURCE, TARGET, **what) == id


def test_everything_that_changes_the_result_changes_the_id() -> None:
    others = [replication_id("another", SOURCE, TARGET), replication_id(STORE, TARGET, SOURCE)]
    ids = [id for id, _ in GOLDEN] + others
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"filter": "f"}, {"filter": "  f\n"}),
        ({"filter": "f", "query_params": {"a": 1, "b": 2}}, {"filter": "f", "query_params": {"b": 2, "a": 1}}),
        ({"doc_ids": ("a", "b")}, {"doc_ids": ("b", "a", "b")}),
        ({"selector": {"a": 1, "b": 2}}, {"selector": {"b": 2, "a": 1}}),
        ({"winning_revs_only": False}, {}),
        ({"query_params": {"a": 1}}, {}),
    ],
)
def test_what_means_the_same_has_the_same_id(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert replication_id(STORE, SOURCE, TARGET, **one) == replication_id(STORE, SOURCE, TARGET, **other)
