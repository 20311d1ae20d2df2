"""`outbox`, and `serve --outbox`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jobs_service import outbox
from tests.cli.conftest import Invoke

URL = "sqlite:app.db"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A SQLite file without tables."""
    sqlite3.connect(tmp_path / "app.db").close()
    (tmp_path / "app.db").touch()
    return tmp_path / "app.db"


def test_the_tables_are_made_once(invoke: Invoke, database: Path) -> None:
    for _ in range(2):
        done = invoke("outbox", "init", URL)
        assert (done.code, done.out) == (
            0,
            "sqlite:app.db has the tables jobs_service_outbox, jobs_service_once and jobs_service_tables\n",
        )
    shown = invoke("outbox", "show", URL)
    assert (shown.code, shown.out) == (0, "sqlite:app.db: 0 jobs to be moved; 0 set aside\n")


def test_whatever_is_in_a_row_it_is_shown(invoke: Invoke, database: Path) -> None:
    invoke("outbox", "init", URL)
    with closing(sqlite3.connect(database)) as db, db:
        db.execute("insert into jobs_service_outbox (type, id, reason) values (x'00ff', cast(x'ff' as text), 7)")
    assert invoke("outbox", "show", URL, "-o", "json").json["rows_set_aside"] == [
        {"seq": 1, "type": r"b'\x00\xff'", "id": r"\udcff", "reason": "7"}
    ]


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_the_statements_are_printed(invoke: Invoke, dialect: str) -> None:
    assert invoke("outbox", "sql", dialect).out.rstrip("\n") == outbox.schema(dialect).rstrip("\n")
    refused = invoke("outbox", "sql", "mysql")
    assert (refused.code, refused.error) == (2, "dialect 'mysql': allowed are 'postgresql', 'sqlite'")


def test_rows_that_were_set_aside_are_shown_and_tried_again(invoke: Invoke, database: Path) -> None:
    invoke("outbox", "init", URL)
    with closing(sqlite3.connect(database)) as db, db:
        outbox.enqueue(db, "receipt", 7)
        for type in ("nobody", "no\x1bbody"):
            db.execute("insert into jobs_service_outbox (type, reason) values (?, 'unknown type: nobody')", [type])
    shown = invoke("outbox", "show", URL)
    first, head, *lines = shown.out.splitlines()
    assert first.startswith("sqlite:app.db: 1 job to be moved, the oldest for ")
    assert first.endswith("; 2 set aside")
    assert [head.split(), lines[0].split()] == [
        ["SEQ", "TYPE", "REASON"],
        ["2", "nobody", *["unknown", "type:", "nobody"]],
    ]
    assert shown.out.replace("\n", "").isprintable()
    found = invoke("outbox", "show", URL, "-o", "json").json
    assert (found["rows"], found["set_aside"], len(found["rows_set_aside"])) == (1, 2, 2)
    assert invoke("outbox", "retry", URL, "2").out == "sqlite:app.db: 1 row will be tried again\n"
    refused = invoke("outbox", "retry", URL, "1")
    assert (refused.code, refused.error) == (1, "sqlite:app.db: 0 of these rows were set aside")
    assert invoke("outbox", "retry", URL).out == "sqlite:app.db: 1 row will be tried again\n"


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["init", "sqlite:nowhere.db"], 3, "sqlite:nowhere.db: there is no file nowhere.db"),
        (
            ["show", URL],
            3,
            "sqlite:app.db: the tables of the outbox are missing; jobs-service outbox init URL makes them",
        ),
        (["show", "mysql://host/app"], 2, "outbox 'mysql://host/app': allowed are postgresql://USER@HOST/DATABASE"),
        (["show", "postgresql:///app?host=/nowhere"], 3, "postgresql:///app: "),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line(
    invoke: Invoke, database: Path, arguments: list[str], code: int, complaint: str
) -> None:
    refused = invoke("outbox", *arguments)
    assert (refused.code, complaint in refused.error) == (code, True), refused.error


def test_a_daemon_refuses_what_is_no_address_of_a_database(invoke: Invoke) -> None:
    refused = invoke("serve", "--store", "memory:", "--outbox", "app.db")
    assert (refused.code, "outbox 'app.db': allowed are" in refused.error) == (2, True)
