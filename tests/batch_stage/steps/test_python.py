from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from gpupipe.errors import ConfigError, StepError
from helpers.loaders import loading
from helpers.small_images import shrink_all

STEPS: list[Any] = ["decode", {"to_dtype": {"dtype": "float32", "scale": True}}]
load = loading(STEPS, seed=7, engine="cpu", batch_size=8)


def add_noise(images: torch.Tensor, rng: torch.Generator, sigma: float) -> torch.Tensor:
    return images.add_(sigma * torch.randn(images.shape, generator=rng))


def draw_globally(images: torch.Tensor) -> torch.Tensor:
    return images * torch.rand(1)


def refuse(images: torch.Tensor) -> torch.Tensor:
    raise LookupError("not these")


def halve(images: torch.Tensor) -> torch.Tensor:
    return images[:, :, ::2]


def python(name: str, **args: Any) -> list[Any]:
    return [{"python": {"call": f"{__name__}:{name}", "args": args}}]


@pytest.fixture(scope="module")
def root(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shrink_all(faces, tmp_path_factory.mktemp("batches") / "faces", 32)


def first(root: Path, batch: list[Any], **options: Any) -> dict[str, torch.Tensor]:
    with load(root, batch=batch, **options) as loader:
        found: dict[str, torch.Tensor] = next(iter(loader))
        return found


def test_it_works_on_whole_batches_and_leaves_labels_alone(root: Path) -> None:
    plain, noisy = first(root, []), first(root, python("add_noise", sigma=0.5))
    noise = noisy["image"] - plain["image"]
    assert 0.45 < noise.std() < 0.55
    assert torch.equal(noisy["label"], plain["label"])
    soft = first(root, [*python("add_noise", sigma=0.5), "one_hot"])
    assert torch.equal(soft["image"], noisy["image"])
    assert torch.equal(soft["label"].argmax(1), plain["label"])


@pytest.mark.parametrize("name", ["add_noise", "draw_globally"])
def test_draws_depend_on_the_batch_and_leave_the_trainers_alone(root: Path, name: str) -> None:
    batch = python(name, **({"sigma": 0.5} if name == "add_noise" else {}))
    state = torch.get_rng_state()
    expected = first(root, batch)["image"]
    assert torch.equal(first(root, batch, threads=1)["image"], expected)
    with load(root, batch=batch) as loader:
        iterator = iter(loader)
        next(iterator)
        saved = loader.state_dict()
        second = next(iterator)["image"]
    with load(root, batch=batch) as loader:
        loader.load_state_dict(saved)
        assert torch.equal(next(iter(loader))["image"], second)
    assert torch.equal(torch.get_rng_state(), state)


def test_data_without_labels(root: Path) -> None:
    list_ = root / "list.txt"
    list_.write_text(
        "".join(f"{file.relative_to(root)}\n" for file in sorted(root.rglob("*.jpg"))[:4])
    )
    data = {"source": "file_list", "file": str(list_)}
    config = {"data": data, "pipeline": STEPS, "batch": python("draw_globally")}
    with gpupipe.load(config, engine="cpu", device="cpu", batch_size=2) as loader:
        assert "label" not in next(iter(loader))


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (python("refuse"), StepError, r"refuse \(.*LookupError: not these at .*test_python\.py:"),
        (python("halve"), StepError, "made .* of 'image'"),
        (python("no_such"), ConfigError, "has no 'no_such'"),
        (python("add_noise"), ConfigError, "cannot be called .*'sigma'"),
    ],
)
def test_mistakes(root: Path, batch: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        first(root, batch)
