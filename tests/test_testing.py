"""check_loader(): every engine keeps the contract, and what breaks it is named."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gpupipe
from gpupipe.sampling.sampler import Sampler
from gpupipe.testing import check_loader

STEPS = [
    "decode",
    {"random_affine": {"degrees": 20, "translate": [0.1, 0.1], "interpolation": "bilinear"}},
    {"random_crop": {"size": 60}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
]


@pytest.fixture(scope="module")
def few(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """11 of the faces, made small."""
    root = tmp_path_factory.mktemp("few")
    for n, face in enumerate(sorted(faces.glob("*/*.jpg"))[:11]):
        (root / f"{n % 3}").mkdir(exist_ok=True)
        Image.open(face).resize((90, 80)).save(root / f"{n % 3}" / face.name)
    return root


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "dali"},
        {"engine": "cpu"},
        {"engine": "dataloader", "workers": 0},
        {"engine": "dataloader", "workers": 1},
    ],
    ids=str,
)
def test_an_engine_keeps_the_contract(few: Path, options: dict[str, Any]) -> None:
    config = {"data": {"source": "folder", "root": few}, "pipeline": STEPS}
    check_loader(
        lambda **changes: gpupipe.load(config, device="cpu", prefetch=3, **options, **changes)
    )


class Cheating(Sampler):
    """Loses the last sample, forgets the position of a state, or deals the same to each rank."""

    cheat = ""

    def order(self, epoch: int) -> Any:
        order = super().order(epoch)
        return np.append(order[:-1], order[0]) if self.cheat == "twice" else order

    def load_state(self, state: dict[str, Any], strict: bool = True) -> None:
        super().load_state(state | ({"position": 0} if self.cheat == "state" else {}), strict)

    def set_epoch(self, epoch: int) -> None:
        if self.cheat != "epoch":
            super().set_epoch(epoch)


QUICK = {"engine": "dataloader", "workers": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 images of 3x3 pixels."""
    root = tmp_path_factory.mktemp("many")
    for n in range(400):
        (root / f"{n % 4}").mkdir(exist_ok=True)
        Image.new("RGB", (3, 3), (n % 256, n // 256, 7)).save(root / f"{n % 4}" / f"{n:03}.png")
    return root


def test_a_larger_set_takes_a_few_epochs(many: Path) -> None:
    """And not twenty, which is minutes on a thousand photographs."""
    delivered = []

    def make(**changes: Any) -> gpupipe.Loader:
        loader = gpupipe.load(config_of(many, ["decode"]), **QUICK, **changes)
        batches = loader.engine.batches

        def counted(plans: Any) -> Any:
            for plan, batch in batches(plans):
                delivered.append(len(plan.ids))
                yield plan, batch

        loader.engine.batches = counted  # type: ignore[method-assign]
        return loader

    check_loader(make)
    assert 9 * 400 <= sum(delivered) < 16 * 400


def config_of(root: Path, steps: list[Any]) -> dict[str, Any]:
    return {"data": {"source": "folder", "root": root}, "pipeline": steps}


CHEATS = [("twice", "came twice"), ("state", "goes on with the rest"), ("epoch", r"set_epoch\(\)")]


@pytest.mark.parametrize(("cheat", "said"), CHEATS)
@pytest.mark.parametrize("size", ["few", "many"])
def test_what_breaks_the_contract_is_named(
    few: Path, many: Path, size: str, cheat: str, said: str
) -> None:
    config = config_of(few, STEPS) if size == "few" else config_of(many, ["decode"])

    def make(**changes: Any) -> gpupipe.Loader:
        loader = gpupipe.load(config, **QUICK, **changes)
        loader.sampler.__class__ = Cheating
        loader.sampler.cheat = cheat
        return loader

    with pytest.raises(AssertionError, match=said):
        check_loader(make)


@pytest.mark.parametrize(
    ("cheat", "said"),
    [
        (lambda earlier: earlier * 0, "comes again has other draws"),
        (lambda earlier: earlier + 1, "differ from what they are without repeats"),
    ],
    ids=["all_alike", "one_too_many"],
)
def test_an_engine_that_draws_repeats_wrongly_is_named(
    few: Path, cheat: Callable[[Any], Any], said: str
) -> None:
    def make(**changes: Any) -> gpupipe.Loader:
        loader = gpupipe.load(config_of(few, STEPS), **QUICK, **changes)
        batches = loader.engine.batches
        if "repeats" in changes:
            loader.engine.batches = lambda plans: batches(  # type: ignore[method-assign]
                replace(plan, repeats=cheat(plan.repeats), siblings=None) for plan in plans
            )
        return loader

    with pytest.raises(AssertionError, match=said):
        check_loader(make)
