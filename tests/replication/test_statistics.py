"""The counters of a replication."""

from jobs_service.replication.checkpoints import Statistics


def test_of_a_job_and_its_checkpoint_the_larger_counts() -> None:
    of_job = Statistics(docs_read=5, docs_written=1)
    of_checkpoint = Statistics(docs_read=3, docs_written=3)
    assert of_job.at_least(of_checkpoint) == Statistics(docs_read=5, docs_written=3)


def test_what_is_no_count_is_nothing() -> None:
    assert Statistics.from_data({"docs_read": "many", "docs_written": -1, "missing_found": None}) == Statistics()
