"""What a commit depends on: where another one that comes first would have changed it, the store must see a conflict.

That two transactions truly meet is rare. So this looks at what each has read, which the store compares when it commits:
the records that it changes, and the part of a queue from which it takes jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.complaints import shown
from tests.simulation.rows import is_damage, names_in, section

if TYPE_CHECKING:
    from jobs_service.testing import SimulatedTransaction

Range = tuple[bytes, bytes]

_DATA: Final = section("DATA")
_SHOWN: Final = 3


def depends_on(ranges: Iterable[Range], begin: bytes, end: bytes) -> bool:
    """Whether a change of any key from begin up to, not including, end is a conflict.

    Args:
        ranges: that a transaction has read, each without its end.
    """
    for first, last in sorted(each for each in ranges if each[1] > begin and each[0] < end):
        if first > begin:
            return False
        begin = max(begin, last)
        if begin >= end:
            return True
    return False


def ranges_of(transaction: Any) -> Sequence[Range] | None:
    """Return what a transaction has read; None for one of a store on which they run one after the other."""
    conflicts = getattr(transaction, "conflicts", None)
    return None if conflicts is None else conflicts.ranges


def unclaimed_records(transaction: SimulatedTransaction) -> Iterator[str]:
    """Yield what is wrong if a transaction has changed records that others may have changed before it, unnoticed."""
    ranges = ranges_of(transaction)
    if ranges is None or not transaction.journal:
        return
    written = [key for key in transaction.written if key.startswith(_DATA) and not is_damage(key)]
    if not written:
        return
    alone = {begin for begin, _ in ranges}
    wide = [each for each in ranges if each[1] != each[0] + b"\x00"]
    left = [key for key in written if key not in alone and not depends_on(wide, key, key + b"\x00")]
    if left:
        names = [names_in(key) for key in left[:_SHOWN]]
        what = {entry.name for entry in transaction.journal}
        yield f"unclaimed: {transaction.process} has changed {names} by {shown(what)}, whoever has done so meanwhile"
