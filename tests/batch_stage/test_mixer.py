"""What runs the batch stage: its draws, its labels, any layout, and a GPU that is not there."""

from typing import Any

import numpy as np
import pytest
import torch

from batch_stage.mixing_cases import CLASSES, ids, made_batch, mixer_of, stage_of
from gpupipe.batch_stage.mixer import BatchMixer, check_labels
from gpupipe.batch_stage.stage import BatchStage
from gpupipe.batch_stage.steps.mixup import Mixup
from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError, ShapeError
from helpers.fake_gpu import GPU, FakeGpu

BOTH = {"random_choice": {"transforms": ["mixup", "cutmix"]}}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_draws_are_hashes_of_seed_epoch_and_ids_in_their_order() -> None:
    batch = made_batch()
    first = mixer_of(BOTH).mix(0, ids(5), batch)
    assert same(mixer_of(BOTH).mix(0, ids(5), batch), first)
    others = [
        mixer_of(BOTH, seed=1).mix(0, ids(5), batch),
        mixer_of(BOTH).mix(1, ids(5), batch),
        mixer_of(BOTH).mix(0, ids(5, 1), batch),
        mixer_of(BOTH).mix(0, ids(5)[::-1], batch),
        mixer_of(BOTH, BOTH).mix(0, ids(5), batch),
    ]
    assert not any(same(first, other) for other in others)


def test_each_epoch_runs_the_steps_of_its_own_phase() -> None:
    """A schedule also changes what `torch` reads, such as label_smoothing, and not draws alone."""
    plain, smooth = (stage_of({"one_hot": {"label_smoothing": s}}) for s in (0.0, 0.4))
    mixer = BatchMixer(BatchStage(plain.entries, plain.main, {2: smooth}), 0, CLASSES)
    highest = [float(mixer.mix(epoch, ids(5), made_batch())["label"].max()) for epoch in range(4)]
    assert highest == pytest.approx([1.0, 1.0, 0.7, 0.7])


def test_without_steps_a_batch_is_left_alone() -> None:
    batch = made_batch()
    assert mixer_of().mix(0, ids(5), batch) is batch


def test_a_parameter_of_a_step_may_be_called_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    sample = Mixup.sample

    def keep(self: Mixup, images: Any, labels: Any, p: Any) -> Any:
        drawn.append(p["memory"])
        return images, labels

    monkeypatch.setattr(Mixup, "sample", lambda *a: sample(*a) | {"memory": np.array([7])})
    monkeypatch.setattr(Mixup, "torch", keep)
    mixer_of("mixup").mix(0, ids(5), made_batch())
    assert drawn == [7]


def test_labels_become_soft_and_other_fields_stay() -> None:
    batch = made_batch() | {"weight": torch.rand(5), "id": torch.arange(5)}
    mixed = mixer_of("mixup").mix(0, ids(5), batch)
    assert (mixed["label"].shape, mixed["label"].dtype) == ((5, 4), torch.float32)
    assert torch.allclose(mixed["label"].sum(1), torch.ones(5))
    assert mixed["weight"] is batch["weight"]
    assert batch["label"].dtype == torch.int64


@pytest.mark.parametrize("label", [-1, 4, -(2**63)])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    """Labels that are read with their samples are not checked before."""
    batch = made_batch()
    batch["label"][2] = label
    with pytest.raises(ShapeError, match=rf"a sample has the label {label}, .* 0 to 3"):
        mixer_of("one_hot").mix(0, ids(5), batch)


@pytest.mark.parametrize("step", ["mixup", "cutmix"])
@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("HWC", (12, 10, 3)),
        ("HW", (12, 10)),
        ("CDHW", (2, 4, 12, 10)),
        ("BHWC", (2, 12, 10, 3)),
        ("BHW", (2, 12, 10)),
    ],
)
def test_any_layout(step: str, layout: str, shape: tuple[int, ...]) -> None:
    """The same box and share for every layout with height and width."""
    field = Spec.of_array("float32", shape, layout)
    array = torch.rand(5, *shape)
    batch = {"array": array, "label": torch.arange(5) % 4}
    mixed = mixer_of(step, fields={"array": field}, main=("array",)).mix(0, ids(5), batch)
    plain = made_batch()
    plain["image"] = torch.ones(5, 1, 12, 10) * torch.arange(5.0).reshape(5, 1, 1, 1)
    shares = mixer_of(step).mix(0, ids(5), plain)["image"][1, 0]  # 0 where it is the sample before
    axes = [slice(None) if axis in "HW" else None for axis in layout]
    share = shares[tuple(axes)]
    assert mixed["array"].shape == array.shape
    assert torch.allclose(mixed["array"][1], share * array[1] + (1 - share) * array[0], atol=1e-6)


def test_a_series_is_mixed() -> None:
    field = Spec.of_array("float64", (50,), "L")
    batch = {"array": torch.rand(5, 50, dtype=torch.float64), "label": torch.arange(5) % 4}
    mixed = mixer_of("mixup", fields={"array": field}, main=("array",)).mix(0, ids(5), batch)
    share = float(mixed["label"][1, 1])
    expected = share * batch["array"][1] + (1 - share) * batch["array"][0]
    assert torch.allclose(mixed["array"][1], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("step", "classes", "labels", "words"),
    [
        ("mixup", [], np.full(5, -1), ("the data has none", "leave out 'batch:'")),
        ("mixup", CLASSES, np.full(5, -1), ("the data has none",)),
        ("one_hot", [], None, ("the data has none",)),
        ("cutmix", CLASSES, np.linspace(0, 3, 5), ("class numbers", "float64", "as values")),
        ("cutmix", CLASSES, np.zeros((5, 2), np.int64), ("class numbers", "(5, 2)")),
        ({"mixup": {"num_classes": 3}}, CLASSES, None, ("num_classes is 3", "num_classes: 4")),
        ("mixup", CLASSES, np.array([0, 4]), ("the label 4", "0 to 3")),
        ("mixup", CLASSES, np.array([0, -1]), ("the label -1", "0 to 3")),
    ],
)
def test_labels_that_cannot_be_mixed(
    step: Any, classes: list[str], labels: Any, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as error:
        check_labels(stage_of(step), classes, labels)
    text = str(error.value)
    assert text.startswith("c.yaml: batch.0: ")
    assert all(word in text for word in words), text


def test_labels_do_not_matter_without_steps() -> None:
    assert BatchMixer(stage_of(), 0, ["0"]).num_classes == 1


@pytest.mark.parametrize("step", ["mixup", "cutmix", {"one_hot": {"label_smoothing": 0.1}}, BOTH])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_a_gpu_nothing_waits_and_everything_stays_there(step: Any, dtype: torch.dtype) -> None:
    mixer = mixer_of(step)
    with FakeGpu():
        batch = {
            "image": torch.empty(6, 3, 12, 10, dtype=dtype, device=GPU),
            "label": torch.empty(6, dtype=torch.int64, device=GPU),
        }
        for count in (6, 1):
            for epoch in range(4):
                part = {name: tensor[:count] for name, tensor in batch.items()}
                mixed = mixer.mix(epoch, ids(count), part)
                assert {name: tensor.device for name, tensor in mixed.items()} == {
                    "image": GPU,
                    "label": GPU,
                }
                assert mixed["image"].shape == (count, 3, 12, 10)
                assert (mixed["image"].dtype, mixed["label"].dtype) == (dtype, torch.float32)
