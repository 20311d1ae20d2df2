"""The counters of a replication."""

from jobs_service.replication.tally import Statistics


def test_of_a_job_and_its_checkpoint_the_larger_counts() -> None:
    of_job = Statistics(docs_read=5, docs_written=1)
    of_checkpoint = Statistics(docs_read=3, docs_written=3)
    assert of_job.at_least(of_checkpoint) == Statistics(docs_read=5, docs_written=3)


def test_a_status_of_couchdb_has_other_names() -> None:
    status = {"revisions_checked": 7, "missing_revisions_found": 5, "docs_read": 4, "changes_pending": None}
    assert Statistics.from_data(status) == Statistics(missing_checked=7, missing_found=5, docs_read=4)


def test_what_is_no_count_is_nothing() -> None:
    assert Statistics.from_data({"docs_read": "many", "docs_written": -1, "missing_found": None}) == Statistics()


def test_adding_sums_each_counter() -> None:
    total = Statistics(docs_read=2, docs_written=1)
    total.add(Statistics(docs_read=3, doc_write_failures=4))
    assert total == Statistics(docs_read=5, docs_written=1, doc_write_failures=4)
