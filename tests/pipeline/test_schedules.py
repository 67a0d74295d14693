"""Pipelines whose numbers change from epoch to epoch: one for each phase, checked at the start."""

from pathlib import Path
from typing import Any

import pytest

from gpupipe.errors import ConfigError
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.schema import yaml_files
from helpers.odd_steps import installer
from helpers.pipeline_texts import FLOAT, build, mistakes

GROWING = "{from: 16, to: 48, epochs: [1, 5]}"
SIZES = [16, 16, 24, 32, 40, 48, 48]


def of_text(text: str) -> Pipeline:
    return build_pipeline("p", yaml_files.parse(text, "p"))


def test_the_pipeline_of_an_epoch_is_the_one_with_the_epochs_numbers() -> None:
    scheduled = build("decode", f"resize: {{size: [{GROWING}, 20]}}", FLOAT)
    assert list(scheduled.later) == [2, 3, 4, 5]
    for epoch, size in enumerate(SIZES):
        plain = build("decode", f"resize: {{size: [{size}, 20]}}", FLOAT)
        assert scheduled.at_epoch(epoch) == plain
        assert scheduled.at_epoch(epoch).fingerprint == plain.fingerprint
        assert scheduled.phases[scheduled.phase_of(epoch)] is scheduled.at_epoch(epoch)
    assert scheduled.at_epoch(5) is scheduled.at_epoch(10**9)
    assert scheduled.at_epoch(0) is scheduled.at_epoch(1) is not scheduled.at_epoch(2)
    assert scheduled.at_epoch(3).at_epoch(0) is scheduled.at_epoch(3)


def test_until_then_there_is_the_default() -> None:
    scheduled = build("decode", "random_horizontal_flip: {p: {until: 3, then: 0.1}}")
    assert scheduled.at_epoch(2) == build("decode", "random_horizontal_flip")
    assert scheduled.at_epoch(3) == build("decode", "random_horizontal_flip: {p: 0.1}")


def test_a_parameter_without_a_default_needs_a_value() -> None:
    (problem,) = mistakes("decode", "resize: {size: {until: 3, then: 8}}")
    assert problem.startswith("2:3: resize.size: missing; write 'size: ...'")
    assert problem.endswith("(in epoch 0, where resize.size is its default)")


def test_nested_steps_and_views() -> None:
    text = """\
steps: [decode]
views:
  from:
    steps:
      - random_apply:
          p: {value: 0.5, until: 4, then: 1}
          transforms:
            - random_rotation: {degrees: [-1, {from: 0, to: 10, epochs: [0, 2]}]}
  to: {count: 2, steps: [{center_crop: {size: SIZE}}]}
"""
    scheduled = of_text(text.replace("SIZE", "{value: 8, until: 3, then: 9}"))
    assert list(scheduled.later) == [1, 2, 3, 4]
    degrees, chances = [0, 5, 10, 10, 10], [0.5, 0.5, 0.5, 0.5, 1]
    for epoch, (most, p) in enumerate(zip(degrees, chances, strict=True)):
        plain = text.replace("SIZE", "9" if epoch >= 3 else "8")
        plain = plain.replace("{value: 0.5, until: 4, then: 1}", str(p))
        plain = plain.replace("{from: 0, to: 10, epochs: [0, 2]}", str(most))
        assert scheduled.at_epoch(epoch).fingerprint == of_text(plain).fingerprint
        assert scheduled.at_epoch(epoch).output_spec_of("to_1").height == 9 - (epoch < 3)


def test_steps_before_views_have_schedules_too() -> None:
    text = "steps: [decode, {resize: {size: [SIZE, 8]}}]\nviews: {whole: {steps: []}}"
    scheduled = of_text(text.replace("SIZE", "{value: 8, until: 3, then: 9}"))
    assert [p.output_spec.height for p in scheduled.phases] == [8, 9]


def test_a_schedule_that_changes_nothing_is_none() -> None:
    scheduled = build("decode", "resize: {size: {from: 8, to: 8, epochs: [3, 9]}}")
    assert scheduled == build("decode", "resize: {size: 8}")
    assert scheduled.phases == (scheduled,)


def test_the_fingerprint_covers_the_schedule() -> None:
    """Two schedules that mean the same have the same, as two files that mean the same."""

    def fingerprint(size: str) -> str:
        return build("decode", f"resize: {{size: {size}}}").fingerprint

    jump = fingerprint("{value: 8, until: 3, then: 16}")
    assert jump == fingerprint("{value: 8, until: 2, then: {value: 8, until: 3, then: 16}}")
    others = ["8", "16", "{value: 8, until: 4, then: 16}", "{value: 8, until: 3, then: 17}"]
    assert len({jump, *map(fingerprint, others)}) == 5


def test_the_first_steps_have_the_schedules_of_the_whole() -> None:
    scheduled = build("decode", f"resize: {{size: {GROWING}}}", f"center_crop: {{size: {GROWING}}}")
    first = scheduled.first_steps(2)
    assert [len(p.entries) for p in first.phases] == [2] * 5
    assert first.at_epoch(4) == build("decode", "resize: {size: 40}")


def test_what_is_left_without_some_steps_has_the_schedules_of_the_whole() -> None:
    scheduled = build("decode", f"resize: {{size: {GROWING}}}", f"center_crop: {{size: {GROWING}}}")
    assert scheduled.without_entries([2]).at_epoch(4) == build("decode", "resize: {size: 40}")


def test_a_mistake_of_a_late_epoch_is_found_at_the_start() -> None:
    steps = ("decode", "resize: {size: [40, 40]}")
    (problem,) = mistakes(*steps, f"random_crop: {{size: {GROWING}}}")
    assert problem.startswith(
        "3:3: random_crop cannot stand here: the crop needs at least 48x48 pixels, but the image "
        "has 40x40"
    )
    assert problem.endswith("(in epoch 5, where random_crop.size is 48)")
    (problem,) = mistakes(*steps, "random_horizontal_flip: {p: {value: 0, until: 9, then: 1.5}}")
    assert problem.startswith("3:31: random_horizontal_flip.p is 1.5, but should be")
    assert problem.endswith("(in epoch 9, where random_horizontal_flip.p is 1.5)")


def test_an_early_mistake_names_the_epoch_only_if_it_goes_away() -> None:
    crop = "random_crop: {size: {value: 48, until: 3, then: 16}}"
    problems = mistakes("decode", "resize: {size: [40, 40]}", crop, "center_crop: {sise: 8}")
    assert problems[0].endswith("(in epoch 0, where random_crop.size is 48)")
    assert problems[1].endswith("did you mean 'size'?")


def test_the_epoch_is_named_if_the_mistake_goes_away_in_a_later_phase_than_the_next() -> None:
    crop = "random_crop: {size: {value: 48, until: 6, then: 16}}"
    flip = "random_horizontal_flip: {p: {value: 0, until: 3, then: 1}}"
    (problem,) = mistakes("decode", "resize: {size: [40, 40]}", crop, flip)
    assert "(in epoch 0, where random_crop.size is 48 and" in problem


def test_what_the_yaml_leaves_empty_stays_empty_beside_a_schedule() -> None:
    steps = ("random_horizontal_flip:", "random_rotation: {degrees: 5, center: null}")
    scheduled = build("decode", *steps, "center_crop: {size: {value: 8, until: 3, then: 9}}")
    assert scheduled.at_epoch(3) == build("decode", *steps, "center_crop: {size: 9}")


def test_a_schedule_changes_sizes_and_no_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = installer(tmp_path, monkeypatch)(
        num_uniforms="    level: int = 0\n    num_uniforms = 1",
        infer_spec=(
            "    def infer_spec(self, given):\n"
            "        return replace(given, dtype='float32' if self.level > 2 else 'uint8')"
        ),
    )
    assert build("decode", f"{step}: {{level: {{value: 0, until: 3, then: 2}}}}").later
    (problem,) = mistakes("decode", f"{step}: {{level: {{from: 0, to: 4, epochs: [0, 4]}}}}")
    assert problem.endswith(
        f"the dtype of 'image' is uint8 in epoch 0, and float32 in epoch 3, where {step}.level "
        "is 3: only sizes may change from epoch to epoch"
    )


def test_an_override_changes_a_schedule(tmp_path: Path) -> None:
    from gpupipe import config

    raw: dict[str, Any] = {
        "data": {"source": "folder", "root": str(tmp_path)},
        "pipeline": ["decode", {"resize": {"size": {"value": 8, "until": 3, "then": 16}}}],
    }
    changed = config.read(raw, ["pipeline.1.resize.size.until=5"])
    assert list(changed.pipeline.later) == [5]
    fixed = config.read(raw, ["pipeline.1.resize.size=12"])
    assert not fixed.pipeline.later
    with pytest.raises(ConfigError, match=r"'pipeline.1.resize.size.until=0': resize.size.until"):
        config.read(raw, ["pipeline.1.resize.size.until=0"])
