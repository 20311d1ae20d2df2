"""Redaction of jobs: the secret fields of a type are hidden, and their values are removed from the job's texts.

Python programs that read a job see it unredacted. All other views of jobs (HTTP, events, dashboard, command line, logs)
show the output of a Redaction.

A rule is a path: the keys that lead to a field, separated by dots. `*` matches any one key or item, `**` any number of
them. Lists count as their items: `cards.number` matches the number of every card. A dot, a star, a colon or a backslash
within a key is escaped by a backslash. A path applies to data and result; with the prefix `data:`, `result:`, `error:`
or `progress:` it applies to that part only, and an empty rest matches the whole part. An error has the fields type,
message and traceback, progress has its message.

The values of secret fields are also removed from the job's texts: from error, progress and history.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import unquote, unquote_plus

from jobs_service import json_data, run_data
from jobs_service.errors import InvalidSettings, RecordDamaged, a_kind_of, in_one_line, shown
from jobs_service.model import Job, JobError, JobEvent
from jobs_service.model.job import JobRecord
from jobs_service.run_data import HistoryEvent, HistoryKind, Progress

T = TypeVar("T")

REDACTED: Final = "[redacted]"
"""The replacement of a secret."""

MARK: Final = json_data.encode(REDACTED)
"""The replacement as JSON."""

_PARTS: Final = ("data", "result", "error", "progress")
_FIELDS: Final = {"error": ("type", "message", "traceback"), "progress": ("message",)}
_ANY: Final = object()
_DEEP: Final = object()
_SPECIAL: Final = {"*": _ANY, "**": _DEEP}
_MOST_PATHS: Final = 100
_LONGEST_PATH: Final = 200
_MOST_BYTES: Final = 10_000

_LEAST: Final = 3
"""Characters of the shortest value that is removed from texts: shorter ones occur everywhere."""
_WORD: Final = 8
"""A shorter value is removed only as a word of its own. Of a longer one this many characters are enough, as messages
may be truncated."""
_ENCODED: Final = re.compile(r"\S*[%+]\S*")
"""A URL-encoded word. A value can be encoded in many ways, so words are compared decoded."""
_DECODINGS: Final[tuple[Callable[[str], str], ...]] = (
    unquote_plus,
    unquote,
    functools.partial(unquote_plus, encoding="latin-1"),
    functools.partial(unquote, encoding="latin-1"),
)
_MOST_ENCODED: Final = 3
"""Most nested encodings of a value, such as an address within an address."""
_MOST_SECRETS: Final = 1000
"""A job with more secret values has its texts hidden altogether."""

_Pattern = tuple[object, ...]


class Redaction:
    """The secret fields of a type's jobs.

    Args:
        paths: the rules, see above.

    Attributes:
        paths: the rules without duplicates.

    Raises:
        InvalidSettings: a path is invalid.
    """

    __slots__ = ("_patterns", "paths")

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self.paths = checked(paths)
        self._patterns: dict[str, list[_Pattern]] = {part: [] for part in _PARTS}
        for path in self.paths:
            parts, pattern = _parsed(path)
            for part in parts:
                self._patterns[part].append(pattern)

    def __bool__(self) -> bool:
        return bool(self.paths)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Redaction) and self.paths == other.paths

    def __hash__(self) -> int:
        return hash(self.paths)

    def __repr__(self) -> str:
        return f"Redaction({list(self.paths)!r})"

    def job(self, job: Job) -> Job:
        """Return the redacted job as a Job; its unreadable parts raise as those of the original do."""
        if not self.paths:
            return job
        shown = Job(job.type, job.id, _Shown(job._record, self))
        shown._enqueued = job.enqueued
        return shown

    def event(self, event: JobEvent) -> JobEvent:
        """Return the redacted event."""
        if not self.paths:
            return event
        secrets = self.secrets(event.data, event.result)
        return replace(
            event,
            data=self.data(event.data),
            result=self.result(event.result),
            error=self._error(event.error, secrets),
            progress=self._progress(event.progress, secrets),
        )

    def data(self, data: Any) -> Any:
        """Return a job's redacted data."""
        return _hidden(data, self._patterns["data"])

    def result(self, result: Any) -> Any:
        """Return a job's redacted result."""
        return _hidden(result, self._patterns["result"])

    def error(self, error: JobError | None, job: Job) -> JobError | None:
        """Return the redacted error of a job's run; it need not be stored yet."""
        return self._error(error, self._secrets_of(job._record)) if self.paths else error

    def hides_a_mark(self, data: Any) -> bool:
        """Whether JSON data have the mark in place of a secret, because they were read redacted."""
        return any(value == REDACTED for value in _found(data, self._patterns["data"]))

    def secrets(self, data: Any, result: Any) -> Secrets:
        """Return the secret values of a job, for removal from texts."""
        return Secrets([*_found(data, self._patterns["data"]), *_found(result, self._patterns["result"])])

    def _secrets_of(self, record: JobRecord) -> Secrets:
        """Return the secret values of a job; an unreadable job may have any."""
        try:
            return self.secrets(json_data.decode(record.json), run_data.result_of(record.run_data))
        except RecordDamaged:
            return EVERYTHING

    def _error(self, error: JobError | None, secrets: Secrets) -> JobError | None:
        if error is None:
            return None
        hidden = self._hidden_fields("error")
        return JobError(
            *(
                REDACTED if field in hidden and getattr(error, field) else secrets.removed_from(getattr(error, field))
                for field in _FIELDS["error"]
            )
        )

    def _detail(self, event: HistoryEvent, secrets: Secrets) -> str:
        """Return the redacted detail of an event; a crash's detail holds the error's type and message."""
        if event.kind is HistoryKind.CRASHED and event.detail and self._hidden_fields("error") & {"type", "message"}:
            return REDACTED
        return secrets.removed_from(event.detail)

    def _progress(self, progress: Progress | None, secrets: Secrets) -> Progress | None:
        if progress is None or not progress.message:
            return progress
        hidden = self._hidden_fields("progress")
        return replace(progress, message=REDACTED if hidden else secrets.removed_from(progress.message))

    def _hidden_fields(self, part: str) -> set[str]:
        return {
            field for field in _FIELDS[part] for pattern in self._patterns[part] if pattern in ((), (_ANY,), (field,))
        }

    def run_data(self, record: JobRecord) -> bytes:
        """Return the redacted run data of a record."""
        packed = record.run_data
        if not packed:
            return packed
        secrets = self._secrets_of(record)
        error = self._error(run_data.error_of(packed), secrets)
        progress = self._progress(run_data.progress_of(packed), secrets)
        result = run_data.result_of(packed)
        packed = run_data.with_details(packed, lambda event: self._detail(event, secrets))
        if result is not None:
            packed = run_data.with_part(packed, run_data.RESULT, json_data.encode(self.result(result)))
        if error is not None:
            packed = run_data.with_part(packed, run_data.ERROR, run_data.error_json(error))
        if progress is not None:
            packed = run_data.with_part(packed, run_data.PROGRESS, run_data.progress_json(progress))
        return packed


class Secrets:
    """Secret values of one job, to be removed from its texts.

    Args:
        values: strings and numbers.
        all: whether texts are hidden altogether.
    """

    def __init__(self, values: Iterable[Any], all: bool = False) -> None:
        texts = {form for value in values for form in _forms(value) if len(form) >= _LEAST}
        self._all = all or len(texts) > _MOST_SECRETS
        self._texts = [] if self._all else sorted(texts, key=len, reverse=True)

    def removed_from(self, text: str) -> str:
        """Return a text without these values."""
        if self._all:
            return REDACTED if text else text
        text = self._plainly_removed_from(text)
        return _ENCODED.sub(lambda found: self._decoded(found[0]), text) if self._texts else text

    def _plainly_removed_from(self, text: str) -> str:
        for secret in self._texts:
            if secret not in text:
                continue
            if len(secret) < _WORD:
                text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", REDACTED, text)
            else:
                text = text.replace(secret, REDACTED)
        for secret in self._texts:
            if len(secret) >= _WORD:
                text = _without(text, secret)
        return text

    def _decoded(self, word: str) -> str:
        """Return a word decoded and without these values if it contains a percent-encoded one, else the word itself."""
        inner = word
        for _ in range(_MOST_ENCODED):
            for decode in _DECODINGS:
                decoded = decode(inner)
                if (shown := self._plainly_removed_from(decoded)) != decoded:
                    word = inner = shown
            before, inner = inner, unquote(inner)
            if inner == before:
                break
        return word


EVERYTHING: Final = Secrets((), all=True)
"""Stands for unknown secrets."""


def checked(paths: Any) -> tuple[str, ...]:
    """Return the checked paths of a type's secret fields, without duplicates.

    Raises:
        InvalidSettings: a path is invalid; the message says why.
    """
    if isinstance(paths, str) or not isinstance(paths, Iterable):
        raise InvalidSettings(f"redact={shown(paths)}: {a_kind_of(paths)}; allowed is a list of paths")
    found = tuple(dict.fromkeys(map(_checked, paths)))
    if (size := sum(len(path.encode()) for path in found)) > _MOST_BYTES:
        raise InvalidSettings(f"redact: paths of {size} bytes; at most {_MOST_BYTES} are allowed")
    if len(found) > _MOST_PATHS:
        raise InvalidSettings(f"redact: {len(found)} paths; at most {_MOST_PATHS} are allowed")
    return found


def is_marked(value: Any) -> bool:
    """Whether JSON data contain the replacement of a secret: writing them back would lose the secret."""
    return any(leaf == REDACTED for leaf in _leaves(value))


def _checked(path: Any) -> str:
    if not isinstance(path, str):
        raise InvalidSettings(f"redact: {shown(path)}: {a_kind_of(path)}; a path is a str")
    why = f"it is longer than {_LONGEST_PATH} characters" if len(path) > _LONGEST_PATH else ""
    if not path.isprintable():  # nor can the store keep half of a character
        why = "it has characters that cannot be printed"
    parts, pattern = _parsed(path)
    if len(parts) > 1 and (not pattern or "" in pattern):
        why = "a key in it is empty; data: or result: alone means all of it"
    elif "" in pattern:
        why = "a key in it is empty"
    first, colon, _ = path.partition(":")
    if colon and first not in _PARTS and (len(first) - len(first.rstrip("\\"))) % 2 == 0:
        why = f"there are {', '.join(f'{part}:' for part in _PARTS)}; a colon of a key has a backslash before it"
    for part in _FIELDS.keys() & set(parts):
        if pattern not in ((), (_ANY,), *((field,) for field in _FIELDS[part])):
            why = f"of {part} there are {', '.join(_FIELDS[part])}"
    if why:
        raise InvalidSettings(f"redact: the path {in_one_line(shown(path), 80)}: {why}")
    return "".join(path)


def _parsed(path: str) -> tuple[tuple[str, ...], _Pattern]:
    """Return the parts that a path applies to, and its steps."""
    part, colon, rest = path.partition(":")
    if colon and part in _PARTS:
        return (part,), _steps(rest) if rest else ()
    return ("data", "result"), _steps(path)


def _steps(path: str) -> _Pattern:
    steps, escaped = [""], False
    for character in path:
        if character == "." and not escaped:
            steps.append("")
        else:
            steps[-1] += character
        escaped = character == "\\" and not escaped
    return tuple(_SPECIAL[step] if step in _SPECIAL else re.sub(r"\\(.)", r"\1", step) for step in steps)


def _after(patterns: Iterable[_Pattern], step: str) -> Iterator[_Pattern]:
    """Yield the rest of each pattern that matches a key."""
    for pattern in patterns:
        if not pattern:
            continue
        first = pattern[0]
        if first is _DEEP:
            yield pattern
            yield from _after([pattern[1:]], step)
        elif first is _ANY or first == step:
            yield pattern[1:]


def _is_secret(patterns: Iterable[_Pattern]) -> bool:
    return any(all(step is _DEEP for step in pattern) for pattern in patterns)


def _below(value: Any, patterns: list[_Pattern]) -> Iterator[tuple[Any, Any, list[_Pattern]]]:
    """Yield each key or index of a value, the item there, and the remaining patterns.

    Patterns are deduplicated: otherwise `**` would double at each level of nested lists.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield key, item, list(dict.fromkeys(_after(patterns, key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield index, item, list(dict.fromkeys((*patterns, *_after(patterns, str(index)))))


def _hidden(value: Any, patterns: list[_Pattern]) -> Any:
    """Return a value without the fields that match the patterns; an absent value stays absent."""
    if not patterns or value is None:
        return value
    if _is_secret(patterns):
        return REDACTED
    if isinstance(value, dict):
        return {key: _hidden(item, left) for key, item, left in _below(value, patterns)}
    if isinstance(value, list):
        return [_hidden(item, left) for _, item, left in _below(value, patterns)]
    return value


def _found(value: Any, patterns: list[_Pattern]) -> Iterator[Any]:
    """Yield the values that `_hidden` hides."""
    if patterns and _is_secret(patterns):
        yield from _leaves(value)
    elif patterns:
        for _, item, left in _below(value, patterns):
            yield from _found(item, left)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield value


@functools.lru_cache(maxsize=256)
def _forms_of_text(text: str) -> tuple[str, ...]:
    forms = (text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    return (*forms, in_one_line(text, len(text) + 1))


def _forms(value: Any) -> tuple[str, ...]:
    return _forms_of_text(value) if isinstance(value, str) else (repr(value),)


def _without(text: str, secret: str) -> str:
    """Return a text without a secret, even if only its beginning or end occurs."""
    return _without_beginning(_without_beginning(text, secret)[::-1], secret[::-1], REDACTED[::-1])[::-1]


def _without_beginning(text: str, secret: str, mark: str = REDACTED) -> str:
    head = secret[:_WORD]
    start = text.find(head)
    while start >= 0:
        end, longest = start + _WORD, min(len(text) - start, len(secret))
        while end < start + longest and text[end] == secret[end - start]:
            end += 1
        text = text[:start] + mark + text[end:]
        start = text.find(head, start + len(mark))
    return text


class _Shown:
    """The redacted view of a record: every reader of it gets redacted values."""

    __slots__ = ("_record", "json", "run_data")

    def __init__(self, record: JobRecord, redaction: Redaction) -> None:
        self._record = record
        self.json = _or_damaged(lambda: _json(redaction.data(json_data.decode(record.json))))
        self.run_data = _or_damaged(lambda: redaction.run_data(record))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)


_DAMAGED: Final = b"\xff"
"""Unreadable data and run data."""


def _or_damaged(read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except RecordDamaged:
        return _DAMAGED


def _json(value: Any) -> bytes:
    return b"" if value is None else json_data.encode(value)


NO_REDACTION: Final = Redaction()
"""Nothing is secret."""
