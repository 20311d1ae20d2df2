"""The signature of a handler's function: whether it takes the job, and its other arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from jobs_service import json_data
from jobs_service.errors import InvalidJob, InvalidSettings, JobTooLarge
from jobs_service.layer.enqueueing import ENQUEUE_OPTIONS
from jobs_service.model import Job
from jobs_service.runner.blocking import BlockingJob
from jobs_service.runner.functions import Scope, body, refused, resolved, scope_of, unwrapped
from jobs_service.runner.keywords import Keywords, Parameter, are_keywords
from jobs_service.runner.payload import Codec, codec, name_of

_JOB: Final = "job"
_JOB_CLASSES: Final = frozenset({"RunningJob", "BlockingJob"})
_UNTYPED: Final = (Any, object, inspect.Parameter.empty)
_POSITIONAL: Final = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})


class Signature(NamedTuple):
    """The calling convention of a function.

    Attributes:
        takes_job, takes_args: whether it takes the job, and arguments.
        codec: codec of its arguments.
        takes_keywords: whether its arguments are given by keyword, not as one value.
        required: names of the parameters beside the job that have no default.
        default: the arguments of a call that gives none.
        defaults: defaults of keyword arguments by name, if JSON can carry them.
        like_options: names of keyword parameters that are also options of `enqueue`.
    """

    takes_job: bool
    takes_args: bool
    codec: Codec
    takes_keywords: bool = False
    required: tuple[str, ...] = ()
    default: Any = None
    defaults: Mapping[str, Any] = MappingProxyType({})
    like_options: tuple[str, ...] = ()


def signature_of(function: Any) -> Signature:
    """Return the calling convention of a function.

    Raises:
        InvalidSettings: a handler cannot have such parameters; the message gives the reason.
    """
    positional, keyword_only = _parameters(function)
    scope = scope_of(unwrapped(body(function)))
    jobs = [_gets_job(function, parameter, scope) for parameter in positional]
    if any(jobs[1:]):
        names = " and ".join(parameter.name for parameter in positional)
        raise refused(
            function,
            f"it takes {names}; of several parameters the first, and only it, gets the job: "
            "name it job or annotate it RunningJob",
        )
    takes_job = jobs[:1] == [True]
    payload = positional[takes_job:]
    if are_keywords(payload, keyword_only):
        return _with_keywords(function, takes_job, [*payload, *keyword_only], scope)
    if not payload:
        return Signature(takes_job, False, codec(Any))
    [parameter] = payload
    is_required = parameter.default is parameter.empty
    return Signature(
        takes_job,
        True,
        _codec_of(function, parameter, scope),
        required=(parameter.name,) if is_required else (),
        default=None if is_required else parameter.default,
    )


def _with_keywords(function: Any, takes_job: bool, parameters: list[inspect.Parameter], scope: Scope) -> Signature:
    """Return the signature of a function with keyword arguments."""
    taken: dict[str, Parameter] = {}
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise refused(function, f"parameter {parameter.name} is positional-only; several are given by keyword")
        taken[parameter.name] = Parameter(_codec_of(function, parameter, scope), parameter.default is parameter.empty)
    required = tuple(name for name, parameter in taken.items() if parameter.required)
    defaults = {
        each.name: each.default
        for each in parameters
        if each.default is not each.empty and _is_data(taken[each.name].codec, each.default)
    }
    like_options = tuple(name for name in taken if name in ENQUEUE_OPTIONS)
    return Signature(takes_job, True, Keywords(taken), True, required, {}, defaults, like_options)


def _is_data(codec: Codec, default: Any) -> bool:
    try:
        json_data.encode(codec.encode(default))
    except (InvalidJob, JobTooLarge):
        return False
    return True


def _codec_of(function: Any, parameter: inspect.Parameter, scope: Scope) -> Codec:
    annotation = resolved(function, parameter, scope)
    try:
        return codec(Any if annotation in _UNTYPED else annotation, scope.locals)
    except InvalidSettings as error:
        raise refused(function, f"parameter {parameter.name}: {error}") from None


def _parameters(function: Any) -> tuple[list[inspect.Parameter], list[inspect.Parameter]]:
    """Return the positional and the keyword-only parameters; refuse parameters that no handler may have."""
    try:
        found = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        raise refused(function, "its parameters cannot be told; wrap it into a function") from None
    for parameter in found:
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise refused(function, f"it takes *{parameter.name}; name its parameters")
        if parameter.kind is parameter.VAR_KEYWORD:
            raise refused(function, f"it takes **{parameter.name}, of which a job has nothing; name its parameters")
    positional = [parameter for parameter in found if parameter.kind in _POSITIONAL]
    if positional and positional[0].name in ("self", "cls"):
        raise refused(function, f"it takes {positional[0].name}; register the bound method of an object")
    keyword_only = [parameter for parameter in found if parameter.kind is parameter.KEYWORD_ONLY]
    for parameter in keyword_only:
        if parameter.name == _JOB and parameter.default is parameter.empty:
            raise refused(function, "parameter job is keyword-only; only the first parameter gets the job")
    # A keyword-only job that has a default was given by functools.partial; it is not an argument of the handler.
    return positional, [parameter for parameter in keyword_only if parameter.name != _JOB]


def _gets_job(function: Any, parameter: inspect.Parameter, scope: Scope) -> bool:
    """Whether a parameter gets the job.

    If the annotation cannot be evaluated, because the class is imported for type checkers only, names decide.
    """
    named = parameter.name == _JOB
    try:
        annotation = resolved(function, parameter, scope)
    except InvalidSettings:
        if named or _names_job(parameter.annotation):
            return True
        raise
    if _is_job(annotation):
        if annotation is BlockingJob and inspect.iscoroutinefunction(body(function)):
            why = "it is a coroutine function, which gets a RunningJob; a BlockingJob is for plain functions"
            raise refused(function, why)
        return True
    if named and annotation not in _UNTYPED and _is_payload(annotation):
        raise refused(function, f"parameter job is annotated {name_of(annotation)} but gets the job; call it args")
    return named


def _is_job(annotation: Any) -> bool:
    if isinstance(annotation, type):
        return issubclass(annotation, Job)
    members = typing.get_args(annotation)
    return bool(members) and all(map(_is_job, members))


def _names_job(annotation: Any) -> bool:
    names = annotation.split("|") if isinstance(annotation, str) else []
    return bool(names) and all(name.strip(" '\"").rpartition(".")[2] in _JOB_CLASSES for name in names)


def _is_payload(annotation: Any) -> bool:
    try:
        codec(annotation)
    except InvalidSettings:
        return False
    return True
