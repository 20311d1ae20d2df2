"""Whether an LMDB data file has all pages that LMDB may touch.

LMDB does not check that its data file is complete, and would end the process that reads a missing page.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from struct import error as StructError
from typing import Final

from jobs_service.errors import StoreError

_MAGIC: Final = 0xBEEFC0DE
_DATA_VERSION: Final = 1
_META_PAGE: Final = 0x08
_BRANCH: Final = 0x01
_LEAF: Final = 0x02
_BIG_VALUE: Final = 0x01
_INTEGER_KEYS: Final = 0x08
_NO_PAGE: Final = 2**64 - 1

# Page number, flags, then how far the node pointers reach.
_PAGE: Final = Struct("=Q2xHH2x")
# Magic, data version; page size, flags and root of the list of free pages; root of the tree of all keys; last page;
# number of the transaction.
_META: Final = Struct("=II16x IH34xQ 40xQ QQ")
_META_END: Final = _PAGE.size + _META.size
_POINTER: Final = Struct("=H")
# Size of the value (low, high), flags, size of the key; on a branch the first three are the child's page number.
_NODE: Final = Struct("=HHHH")
_NUMBER: Final = Struct("=Q")


@dataclass(frozen=True)
class _Meta:
    """The content of one meta page; the first five fields never change.

    LMDB maps the file into memory, so touching a page behind the file's end kills the process (SIGBUS) instead of
    raising an error. The two meta pages have the number of pages, but a sound file may be shorter: pages that a
    transaction took and freed again are never written. So a file is complete if all missing pages are in its list of
    free pages. Files of LMDB 1.0 or of 32-bit machines have another layout; LMDB itself checks them.
    """

    page_flags: int
    magic: int
    version: int
    page_size: int
    free_flags: int
    free_root: int
    main_root: int
    last_page: int
    number: int

    @property
    def is_known(self) -> bool:
        """Whether the meta page has the layout known here."""
        return self.magic == _MAGIC and self.version == _DATA_VERSION

    @property
    def is_sound(self) -> bool:
        """Whether LMDB can have written the fields that never change."""
        return (
            self.is_known
            and self.page_flags == _META_PAGE
            and 256 <= self.page_size <= 0x8000
            and self.page_size & (self.page_size - 1) == 0
            and self.free_flags == _INTEGER_KEYS
        )

    @property
    def is_possible(self) -> bool:
        """Whether the roots of the trees are existing pages."""
        return all(root == _NO_PAGE or 1 < root <= self.last_page for root in (self.free_root, self.main_root))


def check_meta_pages(file: Path) -> None:
    """Refuse a file whose meta pages would make LMDB divide by zero or read impossible pages.

    Called before LMDB opens the file, which need not exist. LMDB itself refuses foreign files. An incomplete file, left
    by a full disk or a killed process, is completed here.

    Raises:
        StoreError: LMDB cannot have written these meta pages.
        OSError: the file cannot be read.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        first = _meta(descriptor, 0)
        if first is None or not first.is_known:
            return
        second = _meta(descriptor, first.page_size)
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if first.is_sound and size < 2 * first.page_size:
        if first.number or first.main_root != _NO_PAGE:
            raise StoreError(
                f"{file} has {size} bytes and needs at least {2 * first.page_size}: it was cut off; restore a backup"
            )
        _finish_making(file, first.page_size)
        return
    if second is None or not (first.is_sound and second.is_sound and first.page_size == second.page_size):
        raise StoreError(f"{file} is damaged: its first pages are not as LMDB writes them; restore a backup")


def _finish_making(file: Path, page_size: int) -> None:
    """Append the missing part of a new store's two meta pages, which are equal but for their numbers.

    Another process may just be making the store, and go on to use it: the appended bytes then lie behind all pages,
    where LMDB never reads.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND)
    try:
        first = os.pread(descriptor, page_size, 0).ljust(page_size, b"\0")
        second = _NUMBER.pack(1) + first[_NUMBER.size :]
        os.write(descriptor, (first + second)[os.fstat(descriptor).st_size :])
    finally:
        os.close(descriptor)


def check_pages(file: Path, number: int) -> bool:
    """Refuse a file without pages that LMDB may touch.

    To be called within an LMDB read transaction, so that no other process changes pages of its state.

    Args:
        file: the data file, opened by LMDB.
        number: number of the read transaction.

    Returns:
        Whether the file was checked. After two commits in the meantime it was not: begin another read transaction.

    Raises:
        StoreError: the file was cut off or is damaged.
        OSError: the file cannot be read.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    try:
        first = _meta(descriptor, 0)
        if first is None or not first.is_known:
            return True
        # Commits write the two meta pages in turn.
        place = first.page_size * (number & 1)
        meta = _meta(descriptor, place)
        if meta is None or meta.number != number:
            return False
        size = os.fstat(descriptor).st_size
        problem = _problem(descriptor, meta, size)
        if problem and _meta(descriptor, place) != meta:
            return False
    finally:
        os.close(descriptor)
    if problem:
        raise StoreError(f"{file} {problem}; restore a backup")
    return True


def _problem(descriptor: int, meta: _Meta, size: int) -> str | None:
    """Return the danger for LMDB in reading a file of so many bytes; None for none."""
    if not meta.is_possible:
        return "is damaged: its first pages are not as LMDB writes them"
    complete = size // meta.page_size
    if complete > meta.last_page:
        return None
    end = meta.last_page + 1
    try:
        lacking = [page for page in _free_pages(descriptor, meta) if complete <= page < end]
    except (ValueError, StructError):
        lacking = []
    if len(lacking) == end - complete:
        return None
    lacking.sort()
    while lacking and lacking[-1] == end - 1:
        lacking.pop()
        end -= 1
    return f"has {size} bytes and needs {end * meta.page_size}: it was cut off"


def _meta(descriptor: int, offset: int) -> _Meta | None:
    """Return the meta page at an offset; None if the file ends within it."""
    content = os.pread(descriptor, _META_END, offset)
    if len(content) < _META_END:
        return None
    _, flags, _ = _PAGE.unpack_from(content)
    return _Meta(flags, *_META.unpack_from(content, _PAGE.size))


def _free_pages(descriptor: int, meta: _Meta) -> set[int]:
    """Return the free pages: LMDB reads none of them before writing it.

    Raises:
        ValueError, struct.error: part of the list is missing or invalid.
    """
    free: set[int] = set()
    seen: set[int] = set()
    waiting = [] if meta.free_root == _NO_PAGE else [meta.free_root]
    while waiting:
        number = waiting.pop()
        if number > meta.last_page or number in seen:
            raise ValueError(f"page {number} cannot be in the list")
        seen.add(number)
        page = os.pread(descriptor, meta.page_size, number * meta.page_size)
        found, flags, lower = _PAGE.unpack_from(page)
        if found != number or flags not in (_BRANCH, _LEAF):
            raise ValueError(f"page {number} is none of the list")
        for (place,) in _POINTER.iter_unpack(page[_PAGE.size : lower]):
            low, high, node_flags, key_size = _NODE.unpack_from(page, place)
            if flags == _BRANCH:
                waiting.append(low | high << 16 | node_flags << 32)
                continue
            numbers = page[place + _NODE.size + key_size :]
            if node_flags & _BIG_VALUE:
                (elsewhere,) = _NUMBER.unpack_from(numbers)
                if elsewhere > meta.last_page:
                    raise ValueError(f"page {elsewhere} cannot be in the list")
                numbers = os.pread(descriptor, low | high << 16, elsewhere * meta.page_size + _PAGE.size)
            (count,) = _NUMBER.unpack_from(numbers)
            if count > len(numbers):
                raise ValueError(f"page {number} is none of the list")
            free.update(Struct(f"={count}Q").unpack_from(numbers, _NUMBER.size))
    return free
