"""Colours of environments, by name or in CSS notation."""

from __future__ import annotations

import re
from typing import Final

from jobs_service.errors import InvalidSettings, shown

_COLOURS: Final = {
    "red": "#b3261e",
    "orange": "#b35309",
    "yellow": "#e0b400",
    "green": "#1a6a35",
    "blue": "#1a56b4",
    "purple": "#7338a0",
    "grey": "#545f72",
    "gray": "#545f72",
}


def colour_of(given: str) -> str:
    """Return a colour in CSS notation, `#rrggbb`; "" for "".

    Args:
        given: a colour's name, `#rgb` or `#rrggbb`.

    Raises:
        InvalidSettings: it is none of these.
    """
    text = given.strip().lower()
    colour = _COLOURS.get(text, text)
    if re.fullmatch("#[0-9a-f]{3}", colour):
        colour = "#" + "".join(digit * 2 for digit in colour[1:])
    if colour and not re.fullmatch("#[0-9a-f]{6}", colour):
        raise InvalidSettings(f"colour {shown(given)}: allowed are {', '.join(_COLOURS)}, #RGB and #RRGGBB")
    return colour
