"""The arguments of a handler with several parameters: a JSON object with a value for each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jobs_service.errors import InvalidJob, in_one_line, meant, shown
from jobs_service.runner.payload import Codec


class Parameter(NamedTuple):
    """One keyword parameter of a handler.

    Attributes:
        codec: codec of its values.
        required: whether it has no default.
    """

    codec: Codec
    required: bool


class Keywords:
    """The codec of keyword arguments: every value is checked against its parameter's annotation.

    Missing arguments stay out of the data, so that the function's own defaults apply at the call.

    Args:
        parameters: the parameters by name.
    """

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._parameters = parameters

    @property
    def required(self) -> list[str]:
        """The names of the parameters without a default."""
        return [name for name, parameter in self._parameters.items() if parameter.required]

    def encode(self, args: Any) -> dict[str, Any]:
        """Return the arguments as a JSON object, from which `decode` makes equal values.

        Raises:
            InvalidJob: they are not a mapping, or a name or a value does not fit.
            JobTooLarge: they exceed the limits of every store.
        """
        if not isinstance(args, Mapping):
            raise InvalidJob(f"arguments by keyword, or a dict of them, should be given; it is {shown(args)}")
        for name in args:
            if name not in self._parameters:
                raise InvalidJob(f"there is no parameter {shown(name)}{meant(name, self._parameters)}")
        return self._each(args, lambda codec, value: codec.encode(value))

    def decode(self, data: Any) -> dict[str, Any]:
        """Return the arguments in a job's data; names without a parameter are ignored.

        Raises:
            InvalidJob: they do not fit.
        """
        if not isinstance(data, dict):
            raise InvalidJob(f"the data should be a dict of arguments; it is {shown(data)}")
        return self._each(data, lambda codec, value: codec.decode(value))

    def _each(self, values: Mapping[str, Any], convert: Callable[[Codec, Any], Any]) -> dict[str, Any]:
        converted = {}
        for name, parameter in self._parameters.items():
            if name in values:
                try:
                    converted[name] = convert(parameter.codec, values[name])
                except InvalidJob as error:
                    raise InvalidJob(f"parameter {in_one_line(name, 80)}: {error}") from None
            elif parameter.required:
                raise InvalidJob(f"parameter {in_one_line(name, 80)} is missing")
        return converted


def are_keywords(positional: list[inspect.Parameter], keyword_only: list[inspect.Parameter]) -> bool:
    """Return whether arguments are given by keyword: for several parameters, or a required keyword-only one."""
    return len(positional) > 1 or any(parameter.default is parameter.empty for parameter in keyword_only)
