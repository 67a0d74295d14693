"""The batch stage: its draws, and what is said of mistakes in its list."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batch_stage.mixing_cases import IMAGE, MASK, ids, read, stage_of
from gpupipe import config
from gpupipe.batch_stage.batch_step import BatchStep
from gpupipe.batch_stage.stage import BatchEntry, BatchStage, build_batch_stage
from gpupipe.batch_stage.steps.mixup import Mixup
from gpupipe.errors import ConfigError, StepError


def entry_of(step: BatchStep, key: str = "mixup") -> BatchEntry:
    return BatchEntry("mixup", key, step, "c.yaml:3", {"image": "CHW"})


def test_draws_are_those_of_seed_epoch_key_and_samples() -> None:
    entry, hashed = entry_of(Mixup()), ids(1)
    drawn = [
        *entry.draw(1, 2, hashed),
        *entry.draw(2, 2, hashed),
        *entry.draw(1, 3, hashed),
        *entry.draw(1, 2, hashed + 1),
        *entry_of(Mixup(), "mixup_2").draw(1, 2, hashed),
    ]
    assert all(0 <= p["lam"] <= 1 for p in drawn)
    assert len({p["lam"] for p in drawn}) == 5


def test_a_sample_is_never_mixed_with_itself() -> None:
    drawn = stage_of("mixup").draw(0, 0, [ids(4), np.array([0, 0, 1, 1])])
    assert [p["shift"] for (p,) in drawn] == [1, 2]


def test_batches_that_are_drawn_at_once_get_what_each_draws_alone() -> None:
    stage = stage_of({"mixup": {"alpha": 0.2}}, "cutmix", "one_hot")
    batches = [ids(4), ids(3, first=9), ids(4)]
    drawn = stage.draw(1, 2, batches)
    assert drawn == [of for batch in batches for of in stage.draw(1, 2, [batch])]
    assert drawn[0] == drawn[2] != drawn[1]


class Wrong(Mixup):
    """Draws for two batches at once."""

    def sample(self, u: Any) -> dict[str, Any]:
        return {"lam": np.zeros(2)}


class Broken(Mixup):
    """Cannot draw."""

    def sample(self, u: Any) -> dict[str, Any]:
        raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("step", "words"),
    [(Wrong(), r"made 'lam' of shape \(2,\) for 1 batch"), (Broken(), r"sample\(\)[\s\S]*boom")],
)
def test_a_step_that_draws_wrongly_is_named_with_its_place(step: BatchStep, words: str) -> None:
    with pytest.raises(StepError, match=words) as error:
        entry_of(step).draw(0, 0, ids(1))
    assert "c.yaml:3" in str(error.value)


def test_a_stage_without_steps_has_no_fingerprint() -> None:
    assert BatchStage().fingerprint == ""
    assert BatchStage().num_classes is None
    assert BatchStage().as_steps() == []


def test_the_stage_of_an_epoch_is_the_last_that_has_begun() -> None:
    first, second, third = (stage_of({"mixup": {"alpha": a}}) for a in (0.1, 0.2, 0.3))
    stage = BatchStage(first.entries, first.main, {3: second, 5: third})
    assert stage.at_epoch(0).as_steps() == first.as_steps()
    assert not stage.at_epoch(2).later
    assert [stage.at_epoch(epoch) for epoch in (3, 4, 5, 90)] == [second, second, third, third]
    assert first.at_epoch(7) is first
    assert len({stage.fingerprint, first.fingerprint, second.fingerprint}) == 3


def test_the_number_of_classes_is_that_of_the_step_that_has_one() -> None:
    assert stage_of("mixup", {"one_hot": {"num_classes": 9}}).num_classes == 9
    assert stage_of("mixup").num_classes is None


HEAD = """data: {source: folder, root: /x}
pipeline:
  - decode
  - random_resized_crop: {size: 8}
  - to_dtype: {dtype: float32, scale: true}
"""


def mistakes(folder: Path, text: str, *overrides: str, **changes: Any) -> list[str]:
    (folder / "c.yaml").write_text(HEAD + text)
    with pytest.raises(ConfigError) as error:
        config.read(folder / "c.yaml", overrides, **changes)
    return [str(p).removeprefix(f"{folder}/") for p in error.value.problems]


def test_every_mistake_has_its_line(tmp_path: Path) -> None:
    text = """batch:
  - mixpu
  - mixup: {alpha: 0}
  - cutmix:
      alhpa: 1
  - random_choice:
      transforms:
        - mixup
        - cutmix: {alpha: no}
  -
  - mixup: {on: mask}
  - one_hot: {num_classes: 5}
  - cutmix: {num_classes: 6}
  - resize
"""
    found = mistakes(tmp_path, text)
    places = {line.split(": ")[0].rpartition(":")[0]: line for line in found}
    assert len(found) == len(places)
    for place, words in {
        "c.yaml:7": "did you mean 'mixup'?",
        "c.yaml:8": "mixup.alpha is 0, but should be above 0",
        "c.yaml:10": "did you mean 'alpha'?",
        "c.yaml:14": "cutmix.alpha is false, but should be a number",
        "c.yaml:15": "a step is empty",
        "c.yaml:16": "on: there is no field 'mask'",
        "c.yaml:18": "cutmix.num_classes is 6, but one_hot has 5",
        "c.yaml:19": "'resize' works on single samples: write it under 'pipeline:'",
    }.items():
        assert words in places[place]


def test_a_step_of_the_batch_stage_in_the_pipeline(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, "", pipeline=["decode", "cutmix"])
    assert "'cutmix' works on whole batches: write it under 'batch:'" in line


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("64", ("batch is 64", "a list of steps", "the number of samples is loader.batch_size")),
        ("mixup", ("batch is 'mixup'", "a list of steps, such as [mixup: {alpha: 0.2}]")),
        ("{mixup: {alpha: 1}}", ("should be a list of steps",)),
        ("", ("batch is empty, but should be a list of steps",)),
    ],
)
def test_no_list(tmp_path: Path, value: str, words: tuple[str, ...]) -> None:
    (line,) = mistakes(tmp_path, f"batch: {value}\n")
    assert line.startswith("c.yaml:6")
    assert all(word in line for word in words), line


def test_a_dtype_setting_counts(tmp_path: Path) -> None:
    (line,) = mistakes(tmp_path, "batch: [mixup]\nloader: {dtype: uint8}\n")
    assert "c.yaml:6" in line
    assert "'image' is uint8" in line
    checked = config.read(tmp_path / "c.yaml", ["pipeline=[decode]", "dtype=float16"])
    assert checked.batch.entries[0].layouts == {"image": "CHW"}


def test_without_a_pipeline_the_parameters_are_checked(tmp_path: Path) -> None:
    found = mistakes(tmp_path, "batch: [mixup: {alpha: -1}]\n", "pipeline=[decoed]")
    assert len(found) == 2
    assert any("mixup.alpha is -1" in line for line in found)


def test_overrides_change_the_list_and_its_parameters(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(HEAD + "batch:\n  - mixup: {alpha: 0.2}\n  - one_hot\n")

    def steps(*overrides: str, **changes: Any) -> list[Any]:
        return config.read(tmp_path / "c.yaml", overrides, **changes).batch.as_steps()

    on = {"on": ["image"]}
    assert steps() == [{"mixup": {"alpha": 0.2} | on}, {"one_hot": {"label_smoothing": 0.0} | on}]
    assert steps("batch=[cutmix]") == [{"cutmix": {"alpha": 1.0} | on}]
    assert steps("batch.0.mixup.alpha=0.5")[0] == {"mixup": {"alpha": 0.5} | on}
    smoothed = {"one_hot": {"label_smoothing": 0.1} | on}
    assert steps("batch.1.one_hot.label_smoothing=0.1")[1] == smoothed
    assert steps("batch=[]") == steps(batch=[]) == []
    with pytest.raises(ConfigError, match=r"batch\.0 is not 'cutmix' but 'mixup'"):
        steps("batch.0.cutmix.alpha=1")


def test_repeated_steps_have_keys_of_their_own_and_fields_are_named() -> None:
    stage = stage_of("mixup", {"mixup": {"on": "other"}}, fields={"image": IMAGE, "other": IMAGE})
    assert [e.key for e in stage.entries] == ["mixup", "mixup_2"]
    assert [list(e.layouts) for e in stage.entries] == [["image"], ["other"]]


@pytest.mark.parametrize("on", [[], 3, ["image", 3], "msak"])
def test_on_names_fields(on: Any) -> None:
    with pytest.raises(ConfigError, match=r"on is .*image, mask|no field 'msak'.*'mask'"):
        stage_of({"cutmix": {"on": on}}, fields={"image": IMAGE, "mask": MASK})


def test_a_stage_that_is_written_is_built_again(tmp_path: Path) -> None:
    """As a server's client does."""
    text = """
- one_hot: {label_smoothing: 0.1}
- random_choice: {transforms: [{mixup: {alpha: 0.2, num_classes: 9}}, cutmix], p: [1, 3]}
- cutmix: {on: [image, mask]}
"""
    fields = {"image": IMAGE, "mask": MASK}
    stage = build_batch_stage(read(tmp_path, text), (), fields, ("image",))
    again = stage_of(*stage.as_steps(), fields=fields)
    assert again.fingerprint == stage.fingerprint
    assert again.num_classes == stage.num_classes == 9
    assert again.as_steps() == stage.as_steps()


def test_fingerprints_differ_with_the_meaning_alone() -> None:
    fields = {"image": IMAGE, "other": IMAGE}
    same = ["mixup", {"mixup": {}}, {"mixup": {"alpha": 1}}, {"mixup": {"on": "image"}}]
    assert len({stage_of(step, fields=fields).fingerprint for step in same}) == 1
    others: list[Any] = [
        "mixup",
        {"mixup": {"alpha": 0.5}},
        {"mixup": {"on": ["image", "other"]}},
        {"mixup": {"num_classes": 8}},
        "cutmix",
        {"random_choice": {"transforms": ["mixup"]}},
    ]
    assert len({stage_of(step, fields=fields).fingerprint for step in others}) == len(others)
    assert stage_of().fingerprint == ""
