"""A loader under a schedule is the loader of each epoch's numbers, to the bit, by every road."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe.errors import StateError
from helpers.loaders import loading

ENGINES: list[dict[str, Any]] = [
    {"engine": "dali", "threads": 2},
    {"engine": "cpu", "threads": 2},
    {"engine": "dataloader", "workers": 0},
    {"engine": "dataloader", "workers": 2},
]
SIZES, FLIPS = [16, 16, 24, 32, 32, 32], [0.5, 0.5, 0.5, 0.5, 1.0, 1.0]
Batches = list[dict[str, torch.Tensor]]


def steps(size: Any, flip: Any) -> list[Any]:
    return [
        "decode",
        {"random_resized_crop": {"size": [size, 20]}},
        {"random_horizontal_flip": {"p": flip}},
        {"to_dtype": {"dtype": "float32", "scale": True}},
    ]


SCHEDULED = steps({"from": 16, "to": 32, "epochs": [1, 3]}, {"until": 4, "then": 1.0})
load_noise = loading(SCHEDULED, batch_size=4, seed=5, last_batch="partial")


def make_noise(root: Path, count: int) -> Path:
    """Images of noise of different sizes, in two classes."""
    rng = np.random.default_rng(1)
    for n in range(count):
        (root / f"{n % 2}").mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (40 + n, 50 + 2 * n, 3), np.uint8)
        Image.fromarray(pixels).save(root / f"{n % 2}" / f"{n:02}.png")
    return root


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """22 images, 40x50 and more, in two classes: six batches of at most four."""
    return make_noise(tmp_path_factory.mktemp("noise") / "noise", 22)


@pytest.fixture(scope="module", params=ENGINES, ids=str)
def engine(request: pytest.FixtureRequest) -> dict[str, Any]:
    options: dict[str, Any] = request.param
    return options


@pytest.fixture(scope="module")
def expected(noise: Path, engine: dict[str, Any]) -> list[Batches]:
    """Each epoch by a loader of a pipeline that is written with its numbers."""
    return [plain(noise, epoch, **engine) for epoch in range(len(SIZES))]


def plain(root: Path, epoch: int, **options: Any) -> Batches:
    with load_noise(root, steps(SIZES[epoch], FLIPS[epoch]), **options) as loader:
        loader.sampler.set_epoch(epoch)
        return list(loader)


def agree(found: Iterable[dict[str, torch.Tensor]], wanted: Batches) -> None:
    batches = list(found)
    assert [b["id"].tolist() for b in batches] == [b["id"].tolist() for b in wanted]
    for one, other in zip(batches, wanted, strict=True):
        assert torch.equal(one["image"], other["image"])
        assert torch.equal(one["label"], other["label"])


def test_each_epoch_is_that_of_its_own_numbers(
    noise: Path, engine: dict[str, Any], expected: list[Batches]
) -> None:
    """With `prefetch: 3` the engine takes plans of the next epoch while this one ends."""
    with load_noise(noise, **engine, prefetch=3) as loader:
        for epoch in expected:
            agree(loader, epoch)
        loader.sampler.set_epoch(2)
        agree(loader, expected[2])
        next(iter(loader))  # of epoch 3, left half-way
        agree(loader, expected[4])


def test_batches_outlive_the_graph_that_made_them(
    noise: Path, engine: dict[str, Any], expected: list[Batches]
) -> None:
    with load_noise(noise, **engine) as loader:
        epochs = [list(loader) for _ in expected]
    for found, wanted in zip(epochs, expected, strict=True):
        agree(found, wanted)


@pytest.mark.parametrize("position", [2, 6], ids=["in mid-epoch", "at a boundary"])
def test_a_resume(
    noise: Path, engine: dict[str, Any], expected: list[Batches], position: int
) -> None:
    with load_noise(noise, **engine) as loader:
        loader.sampler.set_epoch(2)
        for _, _batch in zip(range(position), loader, strict=False):
            state = loader.state_dict()
    assert (state["epoch"], state["position"]) == ((2, 8) if position == 2 else (3, 0))
    with load_noise(noise, **engine) as loader:
        loader.load_state_dict(state)
        agree(loader, expected[2][2:] if position == 2 else expected[3])
        agree(loader, expected[3] if position == 2 else expected[4])


def test_two_ranks(noise: Path, engine: dict[str, Any]) -> None:
    for rank in range(2):
        shard = {"rank": rank, "world_size": 2}
        with load_noise(noise, **engine, shard=shard) as loader:
            for epoch in range(3):
                agree(loader, plain(noise, epoch, **engine, shard=shard))


def test_a_state_of_another_schedule_is_refused(noise: Path) -> None:
    others = [
        steps(16, 0.5),
        steps({"from": 16, "to": 32, "epochs": [1, 4]}, {"until": 4, "then": 1.0}),
        steps({"from": 16, "to": 33, "epochs": [1, 3]}, {"until": 4, "then": 1.0}),
    ]
    options = {"engine": "dataloader", "workers": 0}
    with load_noise(noise, **options) as loader:
        state = loader.state_dict()
    same_by_other_words = {"value": 0.5, "until": 4, "then": 1}
    ramp = {"from": 16, "to": 32, "epochs": [1, 3]}
    with load_noise(noise, steps(ramp, same_by_other_words), **options) as loader:
        loader.load_state_dict(state)
    for other in others:
        with (
            load_noise(noise, other, **options) as loader,
            pytest.raises(StateError, match="another pipeline"),
        ):
            loader.load_state_dict(state)


def test_engines_agree(noise: Path) -> None:
    """Within a level on average: their resizes differ more in single pixels of noise."""
    sides = [load_noise(noise, **engine) for engine in ENGINES[:3]]
    for _ in range(4):
        for *others, reference in zip(*sides, strict=True):
            for other in others:
                assert other["image"].shape == reference["image"].shape
                assert (other["image"] - reference["image"]).abs().mean() <= 1 / 255
    for side in sides:
        side.close()


def test_views(noise: Path, engine: dict[str, Any]) -> None:
    def with_views(size: Any) -> Any:
        crop = {"random_resized_crop": {"size": size}}
        return {
            "steps": ["decode"],
            "views": {
                "large": {"steps": [crop]},
                "small": {
                    "count": 2,
                    "steps": [{"random_resized_crop": {"size": 8}}, "random_horizontal_flip"],
                },
            },
        }

    options = {"device": "cpu", "batch_size": 4, "ids": True, **engine}
    config = {"data": {"source": "folder", "root": noise}}
    scheduled = with_views({"from": 16, "to": 20, "epochs": [0, 2]})
    with gpupipe.load(config | {"pipeline": scheduled}, **options) as loader:
        for epoch, size in enumerate([16, 18, 20]):
            with gpupipe.load(config | {"pipeline": with_views(size)}, **options) as other:
                other.sampler.set_epoch(epoch)
                for one, wanted in zip(loader, other, strict=True):
                    assert one.keys() == wanted.keys()
                    assert all(torch.equal(one[name], wanted[name]) for name in one)
                    assert one["large"].shape[2:] == (size, size)


def test_bad_samples_at_the_boundary(tmp_path: Path, engine: dict[str, Any]) -> None:
    """A file that fails in an epoch, and is left out before and after its graph is replaced."""
    root = make_noise(tmp_path / "noise", 14)
    broken = sorted(root.rglob("*.png"))[5]
    broken.write_bytes(broken.read_bytes()[:60])
    options: dict[str, Any] = {**engine, "on_error": "skip", "max_bad": 0.5, "prefetch": 2}
    with load_noise(root, **options) as loader:
        for epoch in range(5):
            batches = list(loader)
            ids = [i for b in batches for i in b["id"].tolist()]
            assert sorted(ids) == [i for i in range(14) if i != 5]
            assert {b["image"].shape[2] for b in batches} == {SIZES[epoch]}


def test_a_batch_step_has_schedules_too(noise: Path) -> None:
    def load_with(alpha: Any, size: Any) -> gpupipe.Loader:
        config = {
            "data": {"source": "folder", "root": noise},
            "pipeline": steps(size, 0.5),
            "batch": [{"mixup": {"alpha": alpha}}],
        }
        return gpupipe.load(config, batch_size=4, engine="dataloader", workers=0, device="cpu")

    ramp = {"from": 0.2, "to": 1.0, "epochs": [0, 2]}
    with load_with(ramp, {"value": 16, "until": 1, "then": 24}) as loader:
        state = loader.state_dict()
        for epoch, (alpha, size) in enumerate([(0.2, 16), (0.6, 24), (1.0, 24)]):
            with load_with(alpha, size) as other:
                other.sampler.set_epoch(epoch)
                for one, wanted in zip(loader, other, strict=True):
                    assert torch.equal(one["image"], wanted["image"])
                    assert torch.equal(one["label"], wanted["label"])
    with (
        load_with(0.2, {"value": 16, "until": 1, "then": 24}) as other,
        pytest.raises(StateError, match="another batch stage"),
    ):
        other.load_state_dict(state)
