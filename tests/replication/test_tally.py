"""What a run has counted, and the bounded list of what was skipped."""

import json

from jobs_service.replication.checkpoints import MOST_SKIPPED, ReplicationTally
from jobs_service.replication.contract import RevisionRefusal


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
