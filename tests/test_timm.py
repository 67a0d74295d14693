"""gpupipe.timm.create_loader in the place of timm.data.create_loader."""

import inspect
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from gpupipe.errors import ConfigError
from gpupipe.timm import create_loader
from gpupipe.timm_adapter import arguments
from gpupipe.timm_adapter.arguments import Erase
from helpers import forked_python

pytest.importorskip("timm")

from timm import create_model
from timm.data import Mixup, create_dataset
from timm.data.loader import create_loader as timm_create_loader
from timm.data.mixup import FastCollateMixup
from timm.data.random_erasing import RandomErasing
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torchvision.datasets import ImageFolder

CPU = torch.device("cpu")
NUM_CLASSES = 17


@pytest.fixture(scope="module")
def dataset(faces: Path) -> Any:
    return create_dataset("", root=str(faces))


@pytest.fixture(scope="module")
def oblong(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Six images that are wider than high."""
    root = tmp_path_factory.mktemp("oblong")
    for number in range(6):
        (root / f"class{number % 2}").mkdir(exist_ok=True)
        gradient = Image.linear_gradient("L").resize((150, 110)).rotate(number * 15)
        image = Image.merge("RGB", [gradient, gradient.rotate(90), gradient.rotate(180)])
        image.save(root / f"class{number % 2}" / f"{number}.png")
    return create_dataset("", root=str(root))


def steps_of(loader: Any) -> list[str]:
    return [entry.key for entry in loader.loader.config.pipeline.entries]


def test_every_argument_of_timm_is_taken_with_its_default() -> None:
    own = inspect.signature(create_loader).parameters
    for name, parameter in inspect.signature(timm_create_loader).parameters.items():
        if name in arguments._SCHEDULE:
            continue
        assert name in own, name
        if name not in ("device", "img_dtype"):  # equal, but written without torch
            assert own[name].default == parameter.default, name
    positions = [p.name for p in own.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    theirs = [n for n in inspect.signature(timm_create_loader).parameters if n in positions]
    assert positions == theirs


# timm's reader leaves the closing of its files to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"crop_pct": 1.0, "interpolation": "bicubic"},
        {"crop_mode": "squash", "input_size": (3, 64, 96)},
        {"is_training": True, "no_aug": True},
        {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
    ],
)
def test_images_without_draws_are_those_of_timm(oblong: Any, arguments: dict[str, Any]) -> None:
    arguments = {"input_size": (3, 80, 80), "batch_size": 6, "device": CPU} | arguments
    expected, labels = next(iter(timm_create_loader(oblong, **arguments, num_workers=0)))
    with create_loader(oblong, **arguments, shuffle=False) as loader:
        found, numbers = next(iter(loader))
    if not arguments.get("is_training"):  # else timm shuffles
        assert numbers.tolist() == labels.tolist()
        assert (found - expected).abs().mean() < 0.02, "about one level"
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype


def test_train_py_for_one_epoch(dataset: Any) -> None:
    """What timm's train.py does with a loader; the wheel of timm has no train.py."""
    torch.manual_seed(0)
    mixup = FastCollateMixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=NUM_CLASSES)
    common = {"input_size": (3, 64, 64), "batch_size": 8, "device": CPU, "num_workers": 2}
    augmentation = {"re_prob": 0.25, "re_mode": "pixel", "interpolation": "random"}
    with (
        create_loader(
            dataset, **common, is_training=True, collate_fn=mixup, **augmentation
        ) as train,
        create_loader(dataset, **common, interpolation="bicubic") as evaluation,
    ):
        model = create_model("test_resnet", num_classes=NUM_CLASSES)
        optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9)
        scheduler, _ = create_scheduler_v2(optimizer, num_epochs=1, updates_per_epoch=len(train))
        loss_fn = SoftTargetCrossEntropy()
        before = [p.clone() for p in model.parameters()]
        updates = 0
        for images, target in train:
            assert target.shape == (8, NUM_CLASSES)
            torch.testing.assert_close(target.sum(1), torch.ones(8))
            loss = loss_fn(model(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            scheduler.step_update(num_updates=updates, metric=loss.item())
        assert updates == len(train) == 7
        assert any(not torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))
        model.eval()
        with torch.no_grad():
            seen = sum(len(target) for images, target in evaluation if len(model(images)))
        assert seen == len(dataset), "each sample once"
        assert train.mixup_enabled
        train.mixup_enabled = False
        _, target = next(iter(train))
        assert (target.max(1).values > 0.9).all(), "labels are smoothed, and not mixed"


def test_mixup_on_batches_and_states(dataset: Any) -> None:
    def create() -> Any:
        return create_loader(
            dataset, 48, 10, is_training=True, hflip=0, device=CPU, use_prefetcher=False
        )

    mixup = Mixup(mixup_alpha=1.0, num_classes=NUM_CLASSES)
    with create() as loader, create() as other:
        batches = iter(loader)
        images, labels = next(batches)
        assert mixup(images.clone(), labels)[1].shape == (10, NUM_CLASSES)
        state = loader.state_dict()
        expected = next(batches)
        other.load_state_dict(state)
        found = next(iter(other))
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
        assert not loader.mixup_enabled
        loader.sampler.set_epoch(0)
        assert torch.equal(next(iter(loader))[0], images)


def test_steps_of_a_recipe(dataset: Any) -> None:
    arguments: dict[str, Any] = {
        "auto_augment": "rand-m7-mstd0.5-inc1",
        "color_jitter": 0.3,
        "vflip": 0.1,
        "grayscale_prob": 0.1,
        "gaussian_blur_prob": 0.2,
        "re_prob": 0.25,
        "num_aug_repeats": 3,
    }
    with create_loader(dataset, 48, 10, is_training=True, device=CPU, **arguments) as loader:
        assert steps_of(loader) == [
            "decode",
            "random_resized_crop",
            "random_horizontal_flip",
            "random_vertical_flip",
            "timm_augment",
            "random_grayscale",
            "random_apply",
            "to_dtype",
            "normalize",
            "random_erasing",
        ]
        assert loader.loader.config.loader.repeats == 3
    arguments = {"color_jitter_prob": 0.5, "hflip": 0.0, "re_prob": 0.2, "re_mode": "rand"}
    with create_loader(dataset, 48, 10, is_training=True, device=CPU, **arguments) as loader:
        expected = ["decode", "random_resized_crop", "random_apply", "to_dtype", "normalize"]
        assert steps_of(loader) == expected, "timm's RandomErasing runs on the batches"
        assert next(iter(loader))[0].isfinite().all()


def test_erasing_comes_after_mixing_as_in_timm(dataset: Any) -> None:
    mixup = FastCollateMixup(mixup_alpha=0.8, num_classes=NUM_CLASSES)
    with create_loader(
        dataset, 48, 10, is_training=True, device=CPU, collate_fn=mixup, re_prob=1.0
    ) as loader:
        assert "random_erasing" not in steps_of(loader)
        images, _ = next(iter(loader))
        assert ((images == 0).all(1).flatten(1).sum(1) > 20).all(), "a window of each image"


def test_dtype_and_gray(dataset: Any, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"device": CPU, "img_dtype": torch.bfloat16}
    with create_loader(dataset, 48, 10, **arguments) as loader:
        assert next(iter(loader))[0].dtype is torch.bfloat16
    Image.new("L", (50, 60), 128).save(tmp_path / "a.png")
    gray = create_dataset("", root=str(tmp_path), input_img_mode="L")
    with create_loader(gray, (1, 32, 32), 1, device=CPU) as loader:
        images, _ = next(iter(loader))
        assert images.shape == (1, 1, 32, 32)
        expected = (128 / 255 - sum((0.485, 0.456, 0.406)) / 3) / (sum((0.229, 0.224, 0.225)) / 3)
        assert images.mean().item() == pytest.approx(expected, abs=0.02)


def test_classes_are_numbered_as_in_timm(tmp_path: Path) -> None:
    for name in ("10", "9", "8"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (40, 40), (int(name), 0, 0)).save(tmp_path / name / "x.png")
    dataset = create_dataset("", root=str(tmp_path))
    with create_loader(dataset, 32, 3, device=CPU) as loader:
        assert next(iter(loader))[1].tolist() == [target for _, target in dataset.reader.samples]
        assert loader.loader.index.classes == ["8", "9", "10"], "in natural order"


def test_samples_that_were_given_other_labels_have_as_many_classes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGB", (40, 40)).save(tmp_path / "a" / "x.png")
    dataset = ImageFolder(str(tmp_path))
    dataset.samples = [(path, 2) for path, _ in dataset.samples]
    with create_loader(dataset, 32, 1, device=CPU) as loader:
        assert loader.loader.index.classes == ["a", "1", "2"]
        assert next(iter(loader))[1].tolist() == [2]


def test_batches_are_erased_as_by_timm() -> None:
    images = torch.ones(8, 3, 32, 32)
    options: dict[str, Any] = {"mode": "const", "max_count": 6, "num_splits": 0, "device": "cpu"}
    random.seed(3)
    expected = RandomErasing(probability=1.0, **options)(images.clone())
    random.seed(3)
    erased, _ = Erase(1.0, "const", 6, 0)(images.clone(), torch.zeros(8))
    assert torch.equal(erased, expected)


def test_a_folder_and_the_data_of_a_config(faces: Path) -> None:
    for data in (str(faces), {"source": "folder", "root": str(faces)}):
        with create_loader(data, 48, 10, device=CPU, engine="cpu") as loader:
            assert next(iter(loader))[0].shape == (10, 3, 48, 48)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"train_crop_mode": "rkrc"}, ["train_crop_mode is 'rkrc'", "leave it out"]),
        ({"num_aug_splits": 3}, ["num_aug_splits is 3"]),
        ({"tf_preprocessing": True, "crop_border_pixels": 2}, ["tf_pre", "crop_border_pixels"]),
        ({"interpolation": "lanczos"}, ["interpolation is 'lanczos'", "bicubic"]),
        ({"interpolation": "random", "is_training": False}, ["evaluation"]),
        ({"crop_mode": "border", "is_training": False}, ["crop_mode is 'border'", "squash"]),
        ({"input_size": (3, 32, 48), "is_training": False}, ["input_size", "squash"]),
        ({"input_size": (4, 48, 48)}, ["4 channels"]),
        ({"re_prob": 0.1, "re_mode": "noise"}, ["re_mode is 'noise'"]),
        ({"worker_seeding": print}, ["worker_seeding", "seed=NUMBER"]),
        ({"input_size_choices": [32, 48]}, ["input_size_choices", "progressive_resizing"]),
        ({"collate_fn": print}, ["collate_fn is print", "FastCollateMixup"]),
        ({"auto_augment": "rand-m9-msdt0.5"}, ["msdt0.5", "mstd0.5"]),
        ({"on_eror": "skip"}, ["on_eror", "on_error"]),
    ],
)
def test_what_cannot_be_honoured_is_named(
    dataset: Any, arguments: dict[str, Any], parts: list[str]
) -> None:
    usual = {"input_size": 48, "batch_size": 8, "is_training": True, "device": CPU}
    with pytest.raises(ConfigError) as refused:
        create_loader(dataset, **usual | arguments)
    assert all(part in str(refused.value) for part in parts), refused.value


def test_datasets_that_are_no_files_of_images(dataset: Any, faces: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset is list of list.*webdataset"):
        create_loader([1, 2], 48, 8, device=CPU)
    changed = create_dataset("", root=str(faces))
    changed.target_transform = str
    changed.input_img_mode = "RGBA"
    with pytest.raises(ConfigError, match=r"target_transform(.|\n)*RGBA"):
        create_loader(changed, 48, 8, device=CPU)


def test_policies_that_resample_otherwise_are_told(dataset: Any) -> None:
    with (
        pytest.warns(UserWarning, match=r"auto_augment='original'.*bilinear") as warned,
        create_loader(
            dataset,
            48,
            8,
            is_training=True,
            auto_augment="original",
            interpolation="bicubic",
            device=CPU,
        ),
    ):
        assert warned[0].filename == __file__


def test_timm_is_imported_when_it_is_needed() -> None:
    code = "import sys, gpupipe.timm; print('timm' in sys.modules)"
    assert forked_python.run(["-c", code], has_torch_alone=True).stdout == "False\n"
