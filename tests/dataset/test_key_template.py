"""Templates of keys."""

from __future__ import annotations

import pytest

from gpupipe.dataset.key_template import KeyTemplate


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("image-{id}", "image-007", {"id": "007"}),
        ("{class}/{name}.jpg", "cat/1.jpg", {"class": "cat", "name": "1"}),
        ("{class}/{name}.jpg", "cat/a/b.jpg", {"class": "cat", "name": "a/b"}),
        ("{a}.{b}", "x\n.y", {"a": "x\n", "b": "y"}),
        ("image-{id}", "image-", None),
        ("image-{id}", "an image-1", None),
        ("{name}.jpg", "1xjpg", None),
        ("fixed", "fixed", {}),
    ],
)
def test_what_placeholders_stand_for(text: str, key: str, values: dict[str, str] | None) -> None:
    template = KeyTemplate(text)
    assert template.match(key) == values
    if values is not None:
        assert template.fill(values) == key


@pytest.mark.parametrize("text", ["{", "a}", "{a}{a}", "{a b}", "{}"])
def test_what_is_no_template(text: str) -> None:
    with pytest.raises(ValueError, match="is no template"):
        KeyTemplate(text)


def test_whether_the_key_is_all_placeholder() -> None:
    assert KeyTemplate("{id}").is_part
    assert not KeyTemplate("{id}.jpg").is_part
    assert not KeyTemplate("{a}{b}").is_part
