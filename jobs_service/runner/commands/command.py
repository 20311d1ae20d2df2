"""The data of a command job, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from jobs_service.arguments import check_duration
from jobs_service.durations import Bounds
from jobs_service.errors import InvalidJob, kind_of, shown

_TIME_LIMITS: Final = Bounds(above=True)
"""Greatest `time_limit` in seconds: thirty years."""


@dataclass(frozen=True, slots=True)
class Command:
    """The program that a command job runs.

    Attributes:
        argv: the program (a path, or a name that is looked up in PATH) and its arguments.
        cwd: the directory to run in; None for the worker's own.
        env: variables that are added to the worker's environment.
        time_limit: greatest duration of a run, kept in seconds; None for no limit.
        stdin: its standard input; None for none (/dev/null).

    Raises:
        InvalidJob: a field is invalid; the message names the field, its value and the allowed values.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    time_limit: float | None = None
    stdin: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "argv", _checked_argv(self.argv))
        object.__setattr__(self, "env", _checked_env(self.env))
        if self.cwd is not None:
            _check_text("cwd", self.cwd, least=1)
        if self.stdin is not None:
            _check_text("stdin", self.stdin, nul=True)
        if self.time_limit is not None:
            checked = check_duration("a command's time_limit", self.time_limit, _TIME_LIMITS)
            object.__setattr__(self, "time_limit", checked)

    @classmethod
    def from_data(cls, data: object) -> Self:
        """Return the command that a job's data describes: an object with argv and optionally the other fields.

        Raises:
            InvalidJob: as above; also when the data is no object, or has an unknown field.
        """
        if not isinstance(data, Mapping):
            raise InvalidJob(f"a command's data is {shown(data)}: allowed is an object with {_FIELDS}")
        for name in data:
            if name not in _DEFAULTS:
                raise InvalidJob(f"a command has no field {shown(name)}: allowed are {_FIELDS}")
        return cls(**{name: data.get(name, default) for name, default in _DEFAULTS.items()})

    def to_data(self) -> dict[str, Any]:
        """Return the data of a job that runs this command, without empty fields."""
        fields = {"cwd": self.cwd, "env": dict(self.env) or None, "time_limit": self.time_limit, "stdin": self.stdin}
        return {"argv": list(self.argv)} | {name: value for name, value in fields.items() if value is not None}


_DEFAULTS: Final[Mapping[str, Any]] = {"argv": None, "cwd": None, "env": None, "time_limit": None, "stdin": None}
_FIELDS: Final = "argv (a list of strings), and may be cwd, env, time_limit, stdin"


def _refusal(what: str, value: object, allowed: str) -> InvalidJob:
    return InvalidJob(f"a command's {what}={shown(value)}: allowed is {allowed}")


def _checked_argv(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise _refusal("argv", value, "a list of at least one string: the program and its arguments")
    for place, argument in enumerate(value):
        _check_text(f"argv[{place}]", argument, least=0 if place else 1)
    return tuple(value)


def _checked_env(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _refusal("env", value, "an object of strings")
    for name, text in value.items():
        if not isinstance(name, str) or "=" in name:
            raise _refusal("name in env", name, "a string without =")
        _check_text("name in env", name, least=1)
        _check_text(f"env[{shown(name)}]", text)
    return dict(value)


def _check_text(what: str, value: object, *, least: int = 0, nul: bool = False) -> None:
    allowed = "a string" if not least else "a string that is not empty"
    if not isinstance(value, str):
        raise _refusal(what, value, f"{allowed}, not {kind_of(value)}")
    if len(value) < least:
        raise _refusal(what, value, allowed)
    if not nul and "\0" in value:
        raise _refusal(what, value, f"{allowed} without NUL characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _refusal(what, value, f"{allowed} without lone surrogates") from None
