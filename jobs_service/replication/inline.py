"""Small attachments travel inline in their documents: a request for each of them costs more than base64."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from jobs_service.replication.contract import Document

_T = TypeVar("_T")

MOST_INLINE: Final = 64 << 10
"""Total bytes of a document's attachments up to which they count as small."""


@dataclass(frozen=True, slots=True)
class SmallAttachments:
    """The attachments of one revision, as described by a source.

    Attributes:
        stubs: the stubs by name.
        size: the bytes of all attachments as base64.
    """

    stubs: Mapping[str, Mapping[str, Any]]
    size: int

    def are_in(self, document: Document) -> bool:
        """Return whether a document has all of them inline, each as its stub describes it."""
        given = document.body.get("_attachments") or {}
        return given.keys() == self.stubs.keys() and all(_is_whole(given[name], self.stubs[name]) for name in given)


def small_attachments(document: Document) -> SmallAttachments | None:
    """Return the attachments of a document with stubs; None if they are large, compressed, or of unknown size."""
    stubs = document.body.get("_attachments") or {}
    if not isinstance(stubs, Mapping) or not all(isinstance(each, Mapping) for each in stubs.values()):
        return None
    # Compressed attachments stay compressed: a target would compress them at its own level, to another digest.
    plain = [each for each in stubs.values() if each.get("stub") and not each.get("encoding")]
    lengths = [length for each in plain if type(length := each.get("length")) is int]
    if len(lengths) < len(stubs) or sum(lengths) > MOST_INLINE:
        return None
    return SmallAttachments(stubs, sum((each + 2) // 3 * 4 for each in lengths))


def portions(wanted: Iterable[tuple[_T, SmallAttachments]], most: int) -> Iterator[list[_T]]:
    """Divide documents with attachments into lists with at most `most` bytes of attachments."""
    some: list[_T] = []
    used = 0
    for each, attachments in wanted:
        if some and used + attachments.size > most:
            yield some
            some, used = [], 0
        some.append(each)
        used += attachments.size
    if some:
        yield some


def _is_whole(given: Any, stub: Mapping[str, Any]) -> bool:
    if not isinstance(given, Mapping) or not isinstance(given.get("data"), str):
        return False
    try:
        content = base64.b64decode(given["data"], validate=True)
    except (binascii.Error, ValueError):
        return False
    kind, _, digest = str(stub.get("digest", "")).partition("-")
    if kind == "md5":
        return digest == base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode()
    return bool(len(content) == stub["length"])
