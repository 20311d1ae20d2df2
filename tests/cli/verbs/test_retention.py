"""`retention`: how long finished jobs are kept."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Invoke


def test_retention_is_shown_and_changed_in_part(invoke: Invoke, email: str) -> None:
    def retention(*options: str) -> str:
        ended = invoke("retention", "email", *options, "--store", email)
        assert (ended.code, ended.err) == (0, "")
        return ended.out

    assert retention("--keep", "7d", "--keep-failed", "forever") == (
        "type email: finished jobs are kept for 7d00h, failed ones forever\n"
    )
    assert (
        retention("--keep-failed", "1h30m") == "type email: finished jobs are kept for 7d00h, failed ones for 1h30m\n"
    )
    assert invoke("retention", "email", "-o", "json", "--store", email).json == {
        "type": "email",
        "keep": 604_800.0,
        "keep_failed": 5_400.0,
    }
    assert retention("--keep", "0").startswith("type email: finished jobs are kept for 0.0s, ")


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["typo"], 1, "there is no type typo"),
        (["typo", "--keep", "1d"], 1, "there is no type typo"),
        (
            ["email", "--keep", "long"],
            2,
            "Invalid value for --keep: 'long' is no duration; write 90, 30s, 10m, 1h30m, 2d or forever",
        ),
        (["email", "--keep-failed", "99999d"], 2, "keep_failed=8639913600.0: allowed are None and durations from 0"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    invoke: Invoke, email: str, arguments: list[str], code: int, complaint: str
) -> None:
    refused = invoke("retention", *arguments, "--store", email)
    assert refused.code == code
    assert complaint in refused.error
