"""Ids of COCO: they are found in any order, and gaps are no error."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpupipe.sources.helpers.coco_index import find_ids

IDS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(IDS, unique=True, max_size=8), st.lists(IDS, max_size=8))
def test_ids_are_found_where_they_are(ids: list[int], others: list[int]) -> None:
    wanted = [*others, *ids[::-1]]
    positions, is_there = find_ids(np.array(ids, np.int64), np.array(wanted, np.int64))
    assert is_there.tolist() == [number in ids for number in wanted]
    found = [ids[n] for n, there in zip(positions, is_there, strict=True) if there]
    assert found == [number for number in wanted if number in ids]
