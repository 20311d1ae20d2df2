"""What a power cut can leave of files, from the system calls that wrote them. strace records those.

The method is that of ALICE (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014) and CrashMonkey (Mohan
et al., "Finding Crash-Consistency Bugs with Bounded Black-Box Crash Testing", OSDI 2018): what was flushed is there; of
what was written since, any part may be, in any order, and one write may be torn between sectors.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

SECTOR: Final = 512
"""What a drive writes as a whole or not at all."""

_CALLS: Final = (
    *("openat", "close", "pwrite64", "pwritev", "pwritev2", "writev", "write", "lseek", "fsync", "fdatasync"),
    *("sync_file_range", "msync", "ftruncate", "link", "unlink"),
)
_UNFINISHED: Final = " <unfinished ...>"
_LINE: Final = re.compile(r"(\d+) +(?:<\.\.\. (\w+) resumed>|(\w+)\()(.*)")
_RESULT: Final = re.compile(r"\) += (-?\d+)[^=]*$")
_BYTES: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass(frozen=True)
class Event:
    """What happened to a file, at one place in the order of all that happened.

    Attributes:
        name: "write" or "flush" of a data file, "link" or "removal" of its name, "directory" that is flushed, or "line"
            of the journal; then whether it "begins" or "ends".
        number: which write, flush or line it is; the same for begin and end.
        offset, content: of a write; the content of a line, the path of a directory.
        is_flushed: of a write that returns only when it is on disk.
        file: name of the data file.
        is_cut: of a write that has no content, but gives the file the offset as its size.
    """

    name: str
    number: int
    offset: int = 0
    content: bytes = b""
    is_flushed: bool = False
    file: str = ""
    is_cut: bool = False


def trace(command: Sequence[str], files: Sequence[Path], journal: Path, *, cwd: Path) -> list[Event]:
    """Run a command and return what it did to data files, all in one directory, and to the journal."""
    output = journal.with_suffix(".trace")
    subprocess.run(
        [
            *("strace", "-f", "-qq", "-xx", "-s", "100000000", "--seccomp-bpf", "-e", f"trace={','.join(_CALLS)}"),
            *("-e", "signal=none", "-o", str(output)),
            *command,
        ],
        cwd=cwd,
        check=True,
    )
    return list(_Reader(files, journal).read(output.read_text()))


def can_trace() -> bool:
    """Whether strace is there and may trace."""
    try:
        return (
            subprocess.run(["strace", "-f", "--seccomp-bpf", "true"], capture_output=True, check=False).returncode == 0
        )
    except FileNotFoundError:
        return False


class _Reader:
    """Reads what strace has written."""

    def __init__(self, files: Sequence[Path], journal: Path) -> None:
        self._files = {str(file): file.name for file in files}
        self._journal = str(journal)
        self._directories = {*map(str, files[0].parents)}
        self._open: dict[int, tuple[str, bool]] = {}
        self._places: dict[int, int] = {}
        self._count = 0

    def read(self, text: str) -> Iterator[Event]:
        waiting: dict[str, tuple[str, list[Event]]] = {}
        for line in text.splitlines():
            match = _LINE.fullmatch(line)
            if match is None:
                continue
            thread, resumed, name, rest = match.groups()
            if resumed is None:
                arguments, events = rest, list(self._begun(name, rest))
                yield from events
            else:
                arguments, events = waiting.pop(thread)
                arguments += rest
            if rest.endswith(_UNFINISHED):
                waiting[thread] = (rest.removesuffix(_UNFINISHED), events)
                continue
            result = _RESULT.search(rest)
            assert result is not None, line[:200]
            yield from self._ended(resumed or name, arguments, int(result[1]), events)

    def _begun(self, name: str, arguments: str) -> Iterator[Event]:
        path, is_flushed = self._file(arguments)
        file = self._data_file(path)
        match name:
            case "write" if path == self._journal:
                yield Event("line begins", self._next(), content=_contents(arguments))
            case "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2" if file:
                descriptor = _descriptor(arguments)
                if name in ("write", "writev"):
                    offset = self._places[descriptor]
                else:
                    offset = int(
                        re.findall(r"\d+", _BYTES.sub("", arguments).partition(" <")[0].partition(") =")[0])[-1]
                    )
                yield Event("write begins", self._next(), offset, _contents(arguments), is_flushed, file)
            case "ftruncate" if file:
                size = int(arguments.split(",")[1].split(")")[0])
                yield Event("write begins", self._next(), size, file=file, is_cut=True)
            case "fsync" | "fdatasync" if file:
                yield Event("flush begins", self._next(), file=file)
            case "fsync" if path in self._directories:
                yield Event("directory begins", self._next(), content=path.encode())
            case "link" if file := self._data_file(_contents(arguments.partition(",")[0]).decode()):
                yield Event("link begins", self._next(), file=file)
            case "unlink" if file := self._files.get(_contents(arguments).decode(), ""):
                yield Event("removal begins", self._next(), file=file)
            case "msync" | "sync_file_range" if file:
                raise ValueError(f"{name} is not understood")

    def _ended(self, name: str, arguments: str, result: int, events: list[Event]) -> Iterator[Event]:
        if name == "openat" and result >= 0:
            self._open[result] = (_contents(arguments).decode(), "SYNC" in arguments)
            self._places[result] = 0
        elif name == "close":
            self._open.pop(_descriptor(arguments), None)
        elif name == "lseek":
            self._places[_descriptor(arguments)] = result
        for event in events:
            if event.name == "write begins" and not event.is_cut:
                assert result == len(event.content), "a write came out short"
                if name in ("write", "writev"):
                    self._places[_descriptor(arguments)] += result
            yield replace(event, name=event.name.replace("begins", "ends"))

    def _data_file(self, path: str) -> str:
        """Return the name of a data file, also for what gets its name when it is complete; "" for others."""
        return next((name for file, name in self._files.items() if path == file or path.startswith(f"{file}.")), "")

    def _file(self, arguments: str) -> tuple[str, bool]:
        descriptor = re.match(r"\d+", arguments)
        return self._open.get(int(descriptor[0]), ("", False)) if descriptor else ("", False)

    def _next(self) -> int:
        self._count += 1
        return self._count


def _descriptor(arguments: str) -> int:
    match = re.match(r"\d+", arguments)
    assert match is not None
    return int(match[0])


def _contents(arguments: str) -> bytes:
    return b"".join(bytes.fromhex(found.replace("\\x", "")) for found in _BYTES.findall(arguments))


@dataclass
class Cut:
    """A power cut after so many events.

    Attributes:
        flushed: writes that are on disk for certain, in their order.
        loose: writes that may be, whole or not; the last one may be torn.
        removed: the files whose names may be gone.
        before: what was in the files at first.
    """

    flushed: list[Event]
    loose: list[Event]
    removed: set[str] = field(default_factory=set)
    before: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def after(cls, events: Sequence[Event], before: Mapping[str, bytes] | None = None) -> Cut:
        """Return the cut after these events."""
        flushed: set[int] = set()
        begun: dict[int, set[int]] = {}
        ended: dict[str, set[int]] = defaultdict(set)
        for event in events:
            match event.name:
                case "flush begins":
                    begun[event.number] = ended[event.file] - flushed
                case "flush ends":
                    flushed |= begun[event.number]
                case "write ends":
                    ended[event.file].add(event.number)
                    if event.is_flushed:
                        flushed.add(event.number)
        writes = [event for event in events if event.name == "write begins"]
        return cls(
            [write for write in writes if write.number in flushed],
            [write for write in writes if write.number not in flushed],
            {event.file for event in events if event.name == "removal begins"},
            before or {},
        )

    def image(self, choose: Random) -> dict[str, bytes]:
        """Return what the files may be afterwards."""
        share = choose.choice((0.0, 0.3, 0.7, 1.0))
        kept = [write for write in self.loose if choose.random() < share]
        # Pages that belong to one commit do not overlap, so that their order makes no difference but for later ones.
        torn = self.loose[-1].number if kept and choose.random() < 0.5 else None
        files = self._written((*self.flushed, *kept), choose, torn)
        return {name: files[name] for name in files if name not in self.removed or choose.random() < 0.5}

    def whole(self) -> dict[str, bytes]:
        """Return what the files are when nothing is lost."""
        files = self._written((*self.flushed, *self.loose), Random(), None)
        return {name: files[name] for name in files if name not in self.removed}

    def _written(self, writes: Iterable[Event], choose: Random, torn: int | None) -> dict[str, bytes]:
        files = defaultdict(bytearray, {name: bytearray(content) for name, content in self.before.items()})
        for write in sorted(writes, key=lambda write: write.number):
            content = files[write.file]
            if write.is_cut:
                del content[write.offset :]
                content.extend(bytes(write.offset - len(content)))
            elif write.number == torn:
                _write_torn(content, write, choose)
            else:
                _write(content, write.offset, write.content)
        return {name: bytes(content) for name, content in files.items()}


def _write(content: bytearray, offset: int, new: bytes) -> None:
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(new)] = new


def _write_torn(content: bytearray, write: Event, choose: Random) -> None:
    """Write some of the sectors."""
    first = write.offset // SECTOR * SECTOR
    for sector in range(first, write.offset + len(write.content), SECTOR):
        if choose.random() < 0.5:
            begin, end = max(sector, write.offset), min(sector + SECTOR, write.offset + len(write.content))
            _write(content, begin, write.content[begin - write.offset : end - write.offset])
