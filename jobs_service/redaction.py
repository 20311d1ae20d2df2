"""What of a job may be shown: the fields of its type that are secret are hidden, and so is what texts tell of them.

Programs in Python that read a job see it as it is. Everything else that shows jobs (HTTP, events, dashboard, command
line, logs) shows what a Redaction returns.

A rule is a path: the keys that lead to a field, with dots between them. `*` stands for any one key or item, `**` for
any number of them. Lists count as their items: `cards.number` is that of every card. A dot, a star, a colon or a
backslash that belongs to a key has a backslash before it. A path is of data and result; one that begins with `data:`,
`result:`, `error:` or `progress:` is of that part only, and nothing behind it is the whole part. Of an error type,
message and traceback can be named, of progress its message.

The values of these fields are removed from the texts of the same job as well: from error, progress, history.
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
from jobs_service.run_values import HistoryEvent, HistoryKind, Progress

T = TypeVar("T")

REDACTED: Final = "[redacted]"
"""What stands where a secret was."""

MARK: Final = json_data.encode(REDACTED)
"""The same as JSON."""

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
"""A value that is shorter is removed where it is a word of its own; of a longer one so many characters are enough, as
messages are cut off."""
_ENCODED: Final = re.compile(r"\S*[%+]\S*")
"""A word as URLs are, in which a value may be written in many ways: they are compared decoded."""
_DECODINGS: Final[tuple[Callable[[str], str], ...]] = (
    unquote_plus,
    unquote,
    functools.partial(unquote_plus, encoding="latin-1"),
    functools.partial(unquote, encoding="latin-1"),
)
_MOST_ENCODED: Final = 3
"""Times that a value may be encoded over again, as that of an address within an address is."""
_MOST_SECRETS: Final = 1000
"""Where a job has more secret values, its texts are hidden altogether."""

_Pattern = tuple[object, ...]


class Redaction:
    """Which fields of a type's jobs are secret.

    Args:
        paths: see above.

    Attributes:
        paths: without those that were given twice.

    Raises:
        InvalidSettings: a path that cannot be.
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
        """Return what may be shown of a job, as a Job; what of it cannot be read raises there as it does here."""
        if not self.paths:
            return job
        shown = Job(job.type, job.id, _Shown(job._record, self))
        shown._enqueued = job.enqueued
        return shown

    def event(self, event: JobEvent) -> JobEvent:
        """Return what may be shown of an event."""
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
        """Return what may be shown of a job's data."""
        return _hidden(data, self._patterns["data"])

    def result(self, result: Any) -> Any:
        """Return what may be shown of a job's result."""
        return _hidden(result, self._patterns["result"])

    def error(self, error: JobError | None, job: Job) -> JobError | None:
        """Return what may be shown of an error of a job's run, which may not be stored yet."""
        return self._error(error, self._secrets_of(job._record)) if self.paths else error

    def hides_a_mark(self, data: Any) -> bool:
        """Whether JSON data have the mark itself in the place of a secret: they were read where that is hidden."""
        return any(value == REDACTED for value in _found(data, self._patterns["data"]))

    def secrets(self, data: Any, result: Any) -> Secrets:
        """Return the secret values of a job, to remove them from texts."""
        return Secrets([*_found(data, self._patterns["data"]), *_found(result, self._patterns["result"])])

    def _secrets_of(self, record: JobRecord) -> Secrets:
        """Return the secret values of a job; of one that cannot be read anything may be one."""
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
        """Return what may be shown of an event's detail; that of a crash tells the error's type and message."""
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
        """Return the run data of a record as they may be shown."""
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
        """Return a word in which something may be percent-encoded, decoded and without these values if it has one."""
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
"""Stands for secrets that nobody knows."""


def checked(paths: Any) -> tuple[str, ...]:
    """Return the paths of a type's secret fields, each once.

    Raises:
        InvalidSettings: a path that cannot be; the message says why.
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
    """Whether JSON data have the mark that stands for a secret: whoever writes them would lose what it stands for."""
    return any(leaf == REDACTED for leaf in _leaves(value))


def _checked(path: Any) -> str:
    if not isinstance(path, str):
        raise InvalidSettings(f"redact: {shown(path)}: {a_kind_of(path)}; a path is a str")
    why = "it is longer than 200 characters" if len(path) > _LONGEST_PATH else ""
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
    """Return of which parts a path is, and its steps."""
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
    """Yield what is left of patterns behind one key."""
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
    """Yield each key or index of a value, what is there, and what is left of the patterns.

    Each is left once: otherwise `**` would have twice as many at each level of nested lists.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield key, item, list(dict.fromkeys(_after(patterns, key)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield index, item, list(dict.fromkeys((*patterns, *_after(patterns, str(index)))))


def _hidden(value: Any, patterns: list[_Pattern]) -> Any:
    """Return a value without the fields that patterns name; an absent value stays absent."""
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
    """Return how a text is written in messages: as it is, in Python's and JSON's form, and on one line."""
    forms = (text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    return (*forms, in_one_line(text, len(text) + 1))


def _forms(value: Any) -> tuple[str, ...]:
    return _forms_of_text(value) if isinstance(value, str) else (repr(value),)


def _without(text: str, secret: str) -> str:
    """Return a text without a secret, also where only its beginning or its end is left of it."""
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
    """A record with what may be shown of it: whatever is read of it, by whomever, is redacted."""

    __slots__ = ("_record", "json", "run_data")

    def __init__(self, record: JobRecord, redaction: Redaction) -> None:
        self._record = record
        self.json = _or_damaged(lambda: _json(redaction.data(json_data.decode(record.json))))
        self.run_data = _or_damaged(lambda: redaction.run_data(record))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)


_DAMAGED: Final = b"\xff"
"""What nobody can read, as data and as run data."""


def _or_damaged(read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except RecordDamaged:
        return _DAMAGED


def _json(value: Any) -> bytes:
    return b"" if value is None else json_data.encode(value)


NO_REDACTION: Final = Redaction()
"""Nothing is secret."""
