"""What a run has counted, and the bounded list of what was skipped."""

import json

import pytest

from jobs_service.replication.contract import RevisionRefusal
from jobs_service.replication.tally import MOST_SKIPPED, DocumentRefused, ReplicationTally


def test_a_skipped_document_is_counted_and_listed_with_its_reason() -> None:
    tally = ReplicationTally()
    tally.skip(RevisionRefusal("doc", "1-a", "forbidden", "not today", 403))
    assert tally.statistics.doc_write_failures == 1
    assert tally.skipped_data() == [{"id": "doc", "rev": "1-a", "error": "forbidden", "reason": "not today"}]


def test_all_are_counted_and_the_newest_are_listed() -> None:
    tally = ReplicationTally()
    for number in range(MOST_SKIPPED + 10):
        tally.skip(RevisionRefusal(f"doc{number}", "1-a", "forbidden"))
    assert tally.statistics.doc_write_failures == MOST_SKIPPED + 10
    assert [each["id"] for each in tally.skipped_data()] == [f"doc{number}" for number in range(10, MOST_SKIPPED + 10)]


def test_the_list_never_outgrows_a_record() -> None:
    tally = ReplicationTally()
    for number in range(MOST_SKIPPED):
        tally.skip(RevisionRefusal(f"{number}" + "\u65e5" * 10_000, "1-a", "forbidden", "\u65e5" * 10_000))
    assert 1000 < len(json.dumps(tally.skipped_data(), ensure_ascii=False).encode()) < 22_000
    assert tally.skipped_data()[-1]["id"].startswith(f"{MOST_SKIPPED - 1}")


def test_what_earlier_runs_have_skipped_stays_listed_once() -> None:
    first = ReplicationTally()
    first.skip(RevisionRefusal("doc", "1-a", "forbidden", "no"))
    second = ReplicationTally(first.statistics, first.skipped_data())
    second.skip(RevisionRefusal("doc", "1-a", "forbidden", "no"))
    assert len(second.skipped_data()) == 1
    assert second.statistics.doc_write_failures == 1


def test_a_strict_one_raises_instead() -> None:
    with pytest.raises(DocumentRefused, match="document 'doc', revision 1-a: no"):
        ReplicationTally(strict=True).skip(RevisionRefusal("doc", "1-a", "forbidden", "no", 403))
