"""The format of a store's data, and its conversion into the present one."""

from __future__ import annotations

from typing import ClassVar

from jobs_service.errors import StoreError


class Convertible:
    """A store without an earlier format, unless it overrides this."""

    address: str

    converts_when_opened: ClassVar[bool] = True
    """Whether a program that opens a store of an earlier format may convert it: no other machine's programs use it."""

    async def needs_conversion(self) -> bool:
        """Whether its data have an earlier format, or are being converted."""
        return False

    async def begin_conversion(self) -> None:
        """Note the beginning of the conversion: earlier versions refuse the store from now on."""
        raise StoreError(f"store {self.address} has no earlier format")

    async def end_conversion(self) -> None:
        """Note that all data have the present format."""
        raise StoreError(f"store {self.address} has no earlier format")
