"""Views in a pipeline's YAML: the fields that they make, and what is refused."""

import pytest

from gpupipe.errors import ConfigError
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.schema import yaml_files

TEXT = """\
steps:
  - decode
  - random_horizontal_flip
views:
  global:
    count: 2
    steps:
      - random_resized_crop: {size: 64}
  local:
    steps:
      - random_resized_crop: {size: 32}
      - to_dtype: {dtype: float32, scale: true}
"""


def build(text: str) -> Pipeline:
    return build_pipeline("p", yaml_files.parse(text, "p"))


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as e:
        build(text)
    return [str(p) for p in e.value.problems]


def test_views_take_the_place_of_the_image_in_a_batch() -> None:
    built = build(TEXT)
    assert built.outputs == ("global_0", "global_1", "local")
    assert [str(built.output_spec_of(name)) for name in built.outputs] == [
        "(3, 64, 64) uint8",
        "(3, 64, 64) uint8",
        "(3, 32, 32) float32",
    ]
    assert [e.key for e in built.entries] == [
        "decode",
        "random_horizontal_flip",
        "global_0/random_resized_crop",
        "global_1/random_resized_crop",
        "local/random_resized_crop",
        "local/to_dtype",
    ]
    assert [e.where for e in built.entries[2:4]] == ["p:8:9", "p:8:9"]


def test_without_views_a_mapping_means_the_same_as_the_list_of_its_steps() -> None:
    alone = build("steps: [decode, grayscale]")
    assert alone.fingerprint == build("[decode, grayscale]").fingerprint
    assert alone.outputs == ("image",)


@pytest.mark.parametrize(
    "change",
    [
        ("count: 2", "count: 3"),
        ("size: 64", "size: 65"),
        ("  local:", "  other:"),
        ("  - random_horizontal_flip\n", ""),
    ],
)
def test_another_view_is_another_pipeline(change: tuple[str, str]) -> None:
    assert build(TEXT).fingerprint == build(TEXT).fingerprint
    assert build(TEXT.replace(*change)).fingerprint != build(TEXT).fingerprint


def test_a_view_without_steps_counts_for_the_fingerprint() -> None:
    one = build("steps: [decode]\nviews: {whole: {steps: []}}")
    two = build("steps: [decode]\nviews: {other: {steps: []}}")
    assert one.outputs == ("whole",)
    assert one.fingerprint != two.fingerprint


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("  - decode\n", ""), ["p:2:5: ", "no step decodes"]),
        (("  - decode\n  - random_horizontal_flip", "  []"), ["p:2:3: ", "no step"]),
        (("  local:", "  image:"), ["p:9:3: ", "'image'"]),
        (("  local:", "  label:"), ["p:9:3: ", "'label'"]),
        (("  local:", "  global_1:"), ["p:9:3: ", "'global_1'"]),
        (("  local:", "  a-b:"), ["p:9:3: ", "'a-b'"]),
        (("count: 2", "count: 0"), ["p:6:12: ", "at least 1"]),
        (("count: 2", "count: 65"), ["p:6:12: ", "at most 64"]),
        (("count: 2", "cuont: 2"), ["p:6:5: ", "did you mean 'count'?"]),
        (("{size: 64}", "{size: 64, on: image}"), ["p:8:41: ", "on"]),
        (("size: 32", "sise: 32"), ["p:11:31: ", "did you mean 'size'?"]),
        (("views:", "view:"), ["p:4:1: ", "did you mean 'views'?"]),
    ],
    ids=lambda value: "" if isinstance(value, list) else value[1].strip(),
)
def test_what_is_refused_has_its_place(change: tuple[str, str], expected: list[str]) -> None:
    found = mistakes(TEXT.replace(*change))
    assert any(all(part in line for part in expected) for line in found), found


def test_views_of_a_file_that_is_not_decoded_are_refused() -> None:
    (found,) = mistakes("steps: []\nviews: {a: {steps: [decode]}}")
    assert found.startswith("p:1:8: ")
    (found,) = mistakes("steps: [decode]\nviews: {a: {steps: [decode]}}")
    assert found.startswith("p:2:")
    assert "decode cannot stand here" in found


def test_a_mistake_in_a_view_with_copies_is_reported_once() -> None:
    found = mistakes(TEXT.replace("{size: 64}", "{size: 64, scale: 3}"))
    assert len(found) == 1
    assert found[0].startswith("p:8:")
