"""The items that a config can name, and their summaries."""

from __future__ import annotations

import pytest

from gpupipe.cli.catalog import KINDS, first_sentence, list_items


@pytest.mark.parametrize("kind", KINDS)
def test_every_item_has_a_summary_of_one_sentence(kind: str) -> None:
    items = list_items(kind)
    assert items
    for item in items:
        assert 10 < len(item.summary) < 200, item
        assert "\n" not in item.summary


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("One. Two.", "One."),
        ("Root/CLASS/..., in order. Two", "Root/CLASS/..., in order."),
        ("One\nline. Two", "One line."),
        ("One\n\nTwo.", "One"),
        ("", ""),
    ],
)
def test_first_sentence(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence
