"""What a client compares of two servers at one address."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpupipe.client.served_work import find_differences
from gpupipe.protocol.messages import SessionOpened

DESCRIPTION = {
    "name": "little",
    "data": {"fingerprint": "d1", "count": 5},
    "pipeline": {"fingerprint": "p1", "tail": 0},
    "batch": {"fingerprint": "b1"},
    "mode": "share",
    "loader": {"seed": 5, "subset": "/a/file"},
    "selection": {"settings": {"repeats": 1}},
}


def opened(**changes: Any) -> SessionOpened:
    return SessionOpened(1, "0" * 32, 1, [], 0, 0, 0, 1, DESCRIPTION | changes)


def test_the_same_work_has_no_differences() -> None:
    assert find_differences(opened(), opened()) == ""
    assert find_differences(opened(), replace(opened(), pid=2, history="1" * 32, epoch=3)) == ""
    assert find_differences(opened(), opened(name="other")) == "", "a name is no work"
    other_file = opened(loader={"seed": 5, "subset": "/another/file"})
    assert find_differences(opened(), other_file) == "", "the settings of the selection count"


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"data": {"fingerprint": "d2"}}, "data: d1 before, d2 now"),
        ({"pipeline": {"fingerprint": "p2", "tail": 0}}, "pipeline: p1 before, p2 now"),
        ({"pipeline": {"fingerprint": "p1", "tail": 2}}, "steps left to clients: 0 before, 2 now"),
        ({"batch": {"fingerprint": "b2"}}, "batch: b1 before, b2 now"),
        ({"mode": "broadcast"}, "mode: share before, broadcast now"),
        ({"loader": {"seed": 6}}, "seed: 5 before, 6 now"),
        ({"loader": {}}, "seed: 5 before, None now"),
        ({"selection": {"settings": {"repeats": 2}}}, "repeats: 1 before, 2 now"),
        ({"selection": {}}, "repeats: 1 before, None now"),
    ],
)
def test_differences_are_named(changes: dict[str, Any], difference: str) -> None:
    assert find_differences(opened(), opened(**changes)) == difference


def test_another_rank_is_other_work() -> None:
    other = replace(opened(), rank=1, world_size=2)
    assert find_differences(opened(), other) == "rank: 0 before, 1 now; world_size: 1 before, 2 now"
