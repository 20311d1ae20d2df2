"""Checkpoints: where two logs agree, and what is written to which database when."""

from __future__ import annotations

from typing import Any

from jobs_service.replication.checkpoints import LOWEST_SEQ, Ancestor, common_ancestor
from jobs_service.replication.tally import Statistics


def session(id: str, seq: Any, **fields: Any) -> dict[str, Any]:
    return {"session_id": id, "recorded_seq": seq, **fields}


def log(*sessions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    newest = sessions[0]
    return {
        "_id": "_local/id",
        "_rev": "0-1",
        "session_id": newest["session_id"],
        "source_last_seq": newest["recorded_seq"],
        "history": [*sessions],
        **fields,
    }


class TestTheCommonAncestor:
    def test_of_databases_without_logs_is_the_beginning(self) -> None:
        assert common_ancestor(None, None) == Ancestor(LOWEST_SEQ, ())

    def test_of_one_log_alone_is_the_beginning(self) -> None:
        assert common_ancestor(log(session("a", "5")), None) == Ancestor(LOWEST_SEQ, ())
        assert common_ancestor(None, log(session("a", "5"))) == Ancestor(LOWEST_SEQ, ())

    def test_of_the_same_session_is_what_the_source_says(self) -> None:
        # The source is written first: when the target's was not, what the source says was durable before.
        source, target = log(session("a", "7"), session("b", "3")), log(session("a", "5"))
        assert common_ancestor(source, target) == Ancestor("7", tuple(source["history"]))

    def test_of_two_records_of_a_session_is_the_earlier_whoever_has_it(self) -> None:
        # The target's is earlier: a run was killed between the two writes, or the target was restored from a backup.
        late, early = session("a", "7-x", missing_checked=70), session("a", "5-y", missing_checked=50)
        assert common_ancestor(log(late), log(early)).seq == "5-y"
        # The source's is earlier: it was restored from a backup, and gives its sequences out once more.
        assert common_ancestor(log(early), log(late)).seq == "5-y"

    def test_of_two_records_in_histories_is_the_earlier_as_well(self) -> None:
        late, early = session("a", "7-x", missing_checked=70), session("a", "5-y", missing_checked=50)
        newer, other = session("b", "9-z", missing_checked=90), session("c", "8-z", missing_checked=80)
        for one, another in ((late, early), (early, late)):
            assert common_ancestor(log(newer, one), log(another)).seq == "5-y"
            assert common_ancestor(log(one), log(newer, another)).seq == "5-y"
            assert common_ancestor(log(newer, one), log(other, another)).seq == "5-y"

    def test_is_the_newest_session_of_the_source_that_the_target_knows(self) -> None:
        source = log(session("c", "9"), session("b", "7"), session("a", "5"))
        target = log(session("x", "8"), session("b", "7"), session("a", "5"))
        assert common_ancestor(source, target) == Ancestor("7", (source["history"][2],))

    def test_is_found_when_the_target_has_gone_on_alone(self) -> None:
        source = log(session("a", "5"))
        target = log(session("c", "9"), session("b", "7"), session("a", "5"))
        assert common_ancestor(source, target) == Ancestor("5", ())

    def test_is_found_when_the_source_has_gone_on_alone(self) -> None:
        source = log(session("c", "9"), session("b", "7"), session("a", "5"), session("z", "1"))
        target = log(session("a", "5"), session("z", "1"))
        assert common_ancestor(source, target) == Ancestor("5", (target["history"][1],))

    def test_of_strangers_is_the_beginning(self) -> None:
        assert common_ancestor(log(session("a", "5")), log(session("b", "5"))) == Ancestor(LOWEST_SEQ, ())

    def test_of_histories_that_were_cut_is_the_beginning(self) -> None:
        source, target = log(session("a", 1), history=[]), log(session("b", 2))
        assert common_ancestor(source, target) == Ancestor(LOWEST_SEQ, ())

    def test_sessions_without_an_id_are_nobodys(self) -> None:
        source = log(session("a", 5), {"recorded_seq": 3})
        target = log(session("b", 6), {"recorded_seq": 4})
        assert common_ancestor(source, target) == Ancestor(LOWEST_SEQ, ())

    def test_of_damaged_logs_is_the_beginning(self) -> None:
        assert common_ancestor({"session_id": "a", "history": "none"}, {"history": [3, None]}) == Ancestor()

    def test_statistics_go_on_from_it(self) -> None:
        source = log(session("a", "7", docs_read=12))
        assert common_ancestor(source, source).statistics == Statistics(docs_read=12)
