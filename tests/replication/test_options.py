"""What a replication is asked for: keyword arguments, documents of `_replicator`, and one line for each mistake."""

from typing import Any

import pytest

from jobs_service.replication.options import InvalidReplication, ReplicationOptions

SOURCE, TARGET = "http://source.example:5984/db", "https://target.example/db"


def options(**given: Any) -> ReplicationOptions:
    return ReplicationOptions.from_data({"source": SOURCE, "target": TARGET, **given})


def from_document(**given: Any) -> ReplicationOptions:
    return ReplicationOptions.from_document({"source": SOURCE, "target": TARGET, **given})


def test_defaults_are_those_of_couchdb() -> None:
    plain = options()
    assert (plain.worker_processes, plain.worker_batch_size, plain.http_connections) == (4, 500, 20)
    assert (plain.checkpoint_interval, plain.connection_timeout, plain.retries_per_request) == (30.0, 30.0, 5)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"continuous": True, "create_target": True, "create_target_params": {"q": 2}},
        {"doc_ids": ["b", "a"]},
        {"selector": {"year": {"$gt": 2000}}, "since_seq": "5-x"},
        {"filter": "app/mine", "query_params": {"user": "ada"}, "winning_revs_only": True},
        {"source": {"url": SOURCE, "headers": {"X-A": "b"}}, "strict": True, "on_missing": "fail"},
    ],
)
def test_they_come_back_from_their_data(given: dict[str, Any]) -> None:
    asked = options(**given)
    assert ReplicationOptions.from_data(asked.to_data()) == asked


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"source": 3}, "source: allowed are a URL and an object with a url"),
        ({"target": "db"}, "target: allowed are URLs that begin with http"),
        ({"source": {"auth": {}}}, "source: allowed are a URL and"),
        ({"continuous": "yes"}, "continuous: 'yes'; allowed are true and false"),
        ({"doc_ids": "a"}, "doc_ids: allowed is a list of texts"),
        ({"doc_ids": ["a"], "selector": {}}, "doc_ids and selector: only one"),
        ({"filter": "mine"}, "filter: allowed are"),
        ({"filter": "_view"}, 'filter: "_view" needs query_params'),
        ({"worker_processes": 0}, "worker_processes: 0; allowed is an integer from 1 to 100"),
        ({"worker_batch_size": True}, "worker_batch_size: True; allowed is an integer"),
        ({"checkpoint_interval": -1}, "checkpoint_interval: -1; allowed is a number"),
        ({"on_missing": "ignore"}, "on_missing: 'ignore'; allowed are retry, fail"),
        ({"batch": 5}, "batch: there is no such option"),
    ],
)
def test_a_mistake_is_refused_in_one_line_that_names_the_option(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidReplication) as refused:
        options(**given)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_gentler_options_are_never_larger() -> None:
    gentle = options().gentler()
    assert (gentle.checkpoint_interval, gentle.worker_processes) == (5.0, 2)
    assert (gentle.worker_batch_size, gentle.http_connections) == (100, 5)
    small = options(checkpoint_interval=1, worker_processes=1, worker_batch_size=10, http_connections=2)
    assert small.gentler() == small


def test_ids_of_replications_stay_as_they_are() -> None:
    source = {
        "url": "https://ada:hunter2@[::1]:443/a%2Fb/",
        "headers": {"X-Tenant": "a", "Authorization": "Bearer hunter2"},
        "proxy": "http://bob:hunter2@proxy.example:3128",
    }
    given = options(source=source, target="http://target.example:5984/db", doc_ids=("b", "a"), strict=True)
    assert given.id("an installation", None) == "4f7baf427475710ea49c3c36a550a35f"


def test_a_refusal_does_not_repeat_what_may_be_a_password() -> None:
    with pytest.raises(InvalidReplication) as refused:
        options(source="user:hunter2@host/db")
    assert "hunter2" not in str(refused.value)


class TestADocument:
    def test_counts_time_in_milliseconds(self) -> None:
        asked = from_document(checkpoint_interval=5000, connection_timeout="250")
        assert (asked.checkpoint_interval, asked.connection_timeout) == (5.0, 0.25)

    def test_has_percent_encoded_ids_of_documents(self) -> None:
        assert from_document(doc_ids=["a%2Fb", "a%2Fb", "_design/x"]).doc_ids == ("_design/x", "a/b")

    def test_may_have_fields_that_nobody_knows(self) -> None:
        asked = from_document(_id="rep", _rev="1-a", owner="ada", user_ctx={}, _replication_state="error", doc_ids=None)
        assert asked == options()

    def test_has_proxies_of_its_own(self) -> None:
        one = from_document(proxy="http://proxy")
        assert (one.source, one.target) == (
            {"url": SOURCE, "proxy": "http://proxy"},
            {"url": TARGET, "proxy": "http://proxy"},
        )
        other = from_document(source={"url": SOURCE, "headers": {}}, source_proxy="socks5://p")
        assert (other.source, other.target) == ({"url": SOURCE, "headers": {}, "proxy": "socks5://p"}, TARGET)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"cancel": True}, "cancel: remove the job instead"),
            ({"source": "local_db"}, "source: allowed are URLs"),
            ({"worker_processes": "few"}, "worker_processes: 'few'; allowed is an integer"),
            ({"proxy": "http://a", "source_proxy": "http://b"}, "proxy and source_proxy: only one"),
            ({"query_params": "a=b"}, "query_params: allowed is an object"),
            ({"filter": "a/b", "doc_ids": ["x"]}, "filter and doc_ids: only one"),
        ],
    )
    def test_with_a_mistake_is_refused(self, given: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidReplication) as refused:
            from_document(**given)
        assert str(refused.value).startswith(message)

    def test_is_an_object(self) -> None:
        with pytest.raises(InvalidReplication, match="a JSON object"):
            ReplicationOptions.from_document([])


def test_a_source_without_a_target_is_refused() -> None:
    with pytest.raises(InvalidReplication, match="target: it is missing"):
        ReplicationOptions.from_data({"source": SOURCE})
