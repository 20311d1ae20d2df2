"""Endpoints: what is read, what is refused, and that credentials do not show."""

import json
import traceback
from pathlib import Path
from typing import Any

import pytest

from jobs_service.replication.contract import InvalidEndpoint
from jobs_service.replication.endpoint import DatabaseAddress, Secret, masked_form, masked_text, parse_endpoint


def test_credentials_are_split_off_the_address() -> None:
    endpoint = parse_endpoint("HTTPS://me:p%40ss@Example.com:443/db%2Fx/")
    assert (endpoint.url, endpoint.user) == ("https://example.com/db%2Fx", "me")
    assert endpoint.password is not None
    assert endpoint.password.reveal() == "p@ss"
    assert endpoint.session_url == "https://example.com/_session"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (7, "must be a URL or an object"),
        ({}, "lacks a url"),
        ("db", "must begin with http or https"),
        ("ftp://host/db", "must begin with http or https"),
        ("http://host:99999999/db", "invalid url"),
        ("http://me:hidden@host/db?x=1", "has no query"),
        ({"url": "http://host/db", "uri": 1}, "unknown fields: uri"),
        ({"url": "http://host/db", "auth": {"oauth": {}}}, "basic"),
        ({"url": "http://host/db", "headers": {"X": "hidden\r\nY: z"}}, "line break"),
        ({"url": "http://host/db", "headers": {"X": 1}}, "object of texts"),
        ({"url": "http://host/db", "proxy": "ftp://me:hidden@host"}, "source.proxy has an invalid url"),
        ({"url": "http://host/db", "tls": {"check": True}}, "source.tls must be"),
    ],
)
def test_a_mistake_is_told_in_one_line_without_credentials(given: Any, message: str) -> None:
    with pytest.raises(InvalidEndpoint) as caught:
        parse_endpoint(given, what="source")
    told = "".join(traceback.format_exception(caught.value))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hidden" not in told.replace('"http://me:hidden@host/db?x=1"', "")


async def test_secrets_come_from_the_environment_a_file_or_the_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_PASSWORD", "one")
    (tmp_path / "token").write_text("two\n")

    async def of_the_runner(name: str) -> str:
        return {"proxy": "three"}[name]

    endpoint = parse_endpoint(
        {
            "url": "http://me:env:SOURCE_PASSWORD@host/db",
            "headers": {"X-Token": f"file:{tmp_path}/token", "X-Plain": "plain:env:x"},
            "proxy": "http://me:secret:proxy@proxy:8080",
        }
    )
    found = await endpoint.resolved(of_the_runner)
    assert found.password is not None
    assert found.proxy is not None
    assert found.proxy.password is not None
    assert found.password.reveal() == "one"
    assert {name: value.reveal() for name, value in found.headers.items()} == {"X-Token": "two", "X-Plain": "env:x"}
    assert found.proxy.password.reveal() == "three"


@pytest.mark.parametrize("reference", ["env:NOT_THERE_AT_ALL", "file:/not/there", "secret:x"])
async def test_a_secret_that_is_not_there_is_named(reference: str) -> None:
    endpoint = DatabaseAddress("http://host/db", user="me", password=Secret(reference))
    with pytest.raises(InvalidEndpoint, match=reference):
        await endpoint.resolved()


def test_what_holds_endpoints_can_be_shown() -> None:
    form = {
        "source": "http://me:hidden@host/db",
        "target": {
            "url": "https://host/db",
            "auth": {"basic": {"username": "me", "password": "hidden"}},
            "headers": {"X-Any": "hidden", "Y": "env:NAME"},
            "proxy": "http://me:hidden@proxy:80",
            "tls": {"key_password": "hidden", "verify": True},
        },
        "continuous": True,
    }
    shown = masked_form(form)
    assert "hidden" not in json.dumps(shown)
    assert shown["source"] == "http://***@host/db"
    assert shown["target"]["headers"] == {"X-Any": "***", "Y": "env:NAME"}
    assert shown["target"]["tls"]["verify"] is True


def test_addresses_within_a_text_are_masked() -> None:
    text = "GET http://me:hid@den@host/db failed; proxy socks5://a:hidden@h:1 did not"
    assert masked_text(text) == "GET http://***@host/db failed; proxy socks5://***@h:1 did not"
    assert masked_text("http://me:hid/den@host/db") == "http://***@host/db"


def test_what_a_server_repeats_of_the_credentials_is_taken_out() -> None:
    endpoint = parse_endpoint(
        {
            "url": "http://me:hid%20den@host/db",
            "headers": {"X-Key": "marker1"},
            "proxy": "http://me:marker2@proxy:80",
        }
    )
    text = "wrong: hid den, hid%20den, hid+den, bWU6aGlkIGRlbg==, marker1, marker2 and x"
    assert endpoint.redacted(text) == "wrong: ***, ***, ***, ***, ***, *** and x"
