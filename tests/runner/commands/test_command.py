"""The data of command jobs: what is taken, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from jobs_service import json_data
from jobs_service.durations import LONGEST
from jobs_service.errors import InvalidJob
from jobs_service.runner.commands import Command


class TestCommand:
    @pytest.mark.parametrize(
        "data",
        [
            {"argv": ["true"]},
            {"argv": ["a", "", "ü \n $HOME"], "cwd": "/tmp", "env": {"A": "", "B": "="}, "stdin": "\0x"},
            {"argv": ["a"], "time_limit": 30, "stdin": ""},
            {"argv": ["a"], "time_limit": 0.5},
        ],
    )
    def test_comes_out_of_data_as_it_went_in(self, data: dict[str, Any]) -> None:
        assert Command.from_data(data).to_data() == data
        assert Command.from_data(json_data.decode(json_data.encode(data))) == Command.from_data(data)

    @pytest.mark.parametrize(
        ("data", "complaint"),
        [
            (None, "data is None: allowed is an object with argv"),
            (["ls"], "data is ['ls']: allowed is an object with argv"),
            ({}, "argv=None: allowed is a list of at least one string"),
            ({"argv": []}, "argv=[]: allowed is a list of at least one string"),
            ({"argv": "ls -l"}, "argv='ls -l': allowed is a list of at least one string"),
            ({"argv": ["ls", 3]}, "argv[1]=3: allowed is a string, not int"),
            ({"argv": [""]}, "argv[0]='': allowed is a string that is not empty"),
            ({"argv": ["ls", "a\0b"]}, r"argv[1]='a\x00b': allowed is a string without NUL characters"),
            ({"argv": ["ls", "\ud800"]}, r"argv[1]='\ud800': allowed is a string without lone surrogates"),
            ({"argv": ["ls"], "cwd": 1}, "cwd=1: allowed is a string that is not empty, not int"),
            ({"argv": ["ls"], "cwd": ""}, "cwd='': allowed is a string that is not empty"),
            ({"argv": ["ls"], "cwd": "\0"}, "without NUL"),
            ({"argv": ["ls"], "env": []}, "env=[]: allowed is an object of strings"),
            ({"argv": ["ls"], "env": {"A": 1}}, "env['A']=1: allowed is a string, not int"),
            ({"argv": ["ls"], "env": {"A": "\0"}}, "env['A']="),
            ({"argv": ["ls"], "env": {"A=B": ""}}, "name in env='A=B': allowed is a string without ="),
            ({"argv": ["ls"], "env": {"": ""}}, "name in env='': allowed is a string that is not empty"),
            ({"argv": ["ls"], "stdin": 1}, "stdin=1: allowed is a string, not int"),
            ({"argv": ["ls"], "stdin": "\udfff"}, "without lone surrogates"),
            ({"argv": ["ls"], "time_limit": 0}, "time_limit=0: allowed are durations > 0 and <= 1000000000 s"),
            ({"argv": ["ls"], "time_limit": True}, "time_limit=True: allowed"),
            ({"argv": ["ls"], "time_limit": "3x"}, "time_limit='3x': allowed"),
            ({"argv": ["ls"], "time_limit": 10**400}, "time_limit=1000000"),
            ({"argv": ["ls"], "time_limit": float("nan")}, "time_limit=nan: allowed"),
            ({"argv": ["ls"], "shell": True}, "no field 'shell': allowed are argv"),
        ],
    )
    def test_refuses_what_cannot_be_run_and_names_field_value_and_what_is_allowed(
        self, data: object, complaint: str
    ) -> None:
        with pytest.raises(InvalidJob) as refused:
            Command.from_data(data)
        assert complaint in str(refused.value)
        assert "\n" not in str(refused.value)

    def test_is_checked_however_it_is_made_and_frozen(self) -> None:
        with pytest.raises(InvalidJob, match="time_limit=-1"):
            Command(("ls",), time_limit=-1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            Command(("ls",)).cwd = "/"  # type: ignore[misc]
        assert hash(Command(("ls",), env={"A": "1"})) == hash(Command(("ls",), env={"A": "2"}))
        assert Command(("ls",), time_limit=LONGEST).time_limit == LONGEST
