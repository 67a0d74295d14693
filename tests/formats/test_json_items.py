"""Items of arrays in a JSON file: they are those that json finds, whatever the size of blocks."""

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpupipe.formats import DamagedError
from gpupipe.formats.json_items import iter_blocks

TEXTS = st.text(st.sampled_from('ab"\\[]{},: é\n'), max_size=8)
SCALARS = TEXTS | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3)
)


def found(text: bytes, block_bytes: int = 1 << 20) -> dict[str, list[Any]]:
    """The items of each array, decoded one by one."""
    items: dict[str, list[Any]] = {}
    for block in iter_blocks(io.BytesIO(text), block_bytes):
        key = json.loads(f'"{block.key}"')
        assert block.first == len(items.setdefault(key, []))
        items[key] += [json.loads(block.item(n)) for n in range(len(block))]
        assert json.loads(b"[" + block.data + b"]") == items[key][block.first :]
    return items


@settings(max_examples=150, deadline=None)
@given(
    document=st.dictionaries(TEXTS, VALUES, max_size=5),
    block_bytes=st.sampled_from([1, 2, 7, 64, 1 << 20]),
    indent=st.sampled_from([None, 1]),
    is_ascii=st.booleans(),
)
def test_items_are_those_that_json_finds(
    document: dict[str, Any], block_bytes: int, indent: int | None, is_ascii: bool
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=is_ascii).encode()
    expected = {key: value for key, value in document.items() if isinstance(value, list)}
    assert found(text, block_bytes) == expected


@pytest.mark.parametrize("block_bytes", [1, 5, 1 << 20])
def test_every_cut_file_is_noticed(block_bytes: int) -> None:
    text = b'\xef\xbb\xbf {"a": [1, {"b": "]}"}], "s": "x\\"", "o": {"k": [2]}, "e": [ ]}'
    assert found(text, block_bytes) == {"a": [1, {"b": "]}"}], "e": []}
    for end in range(len(text)):
        with pytest.raises(DamagedError):
            found(text[:end], block_bytes)


@pytest.mark.parametrize("text", [b"[1]", b"null", b'{"a" 1}', b"{1: 2}", b'{"a": [1] "b": 2}'])
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(DamagedError, match=r"no JSON object"):
        found(text)


def test_an_item_that_never_ends_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpupipe.formats.json_items._MAX_ITEM_BYTES", 1000)
    monkeypatch.setattr("gpupipe.formats.json_items._MAX_SCALAR_BYTES", 1000)
    for text in (b'{"a": [' + b"[" * 9000, b'{"a": "' + b"x" * 9000, b'{"' + b"x" * 9000):
        stream = io.BytesIO(text)
        with pytest.raises(DamagedError):
            list(iter_blocks(stream, 100))
        assert stream.tell() < 4000
