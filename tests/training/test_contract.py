"""The contract of a loader, held by all engines; and 50 random resumes, 200 with
GPUPIPE_TEST_ALL=1 (`make test-all`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
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
                replace(plan, repeats=cheat(plan.repeats)) for plan in plans
            )
        return loader

    with pytest.raises(AssertionError, match=said):
        check_loader(make)


@settings(
    max_examples=200 if os.environ.get("GPUPIPE_TEST_ALL") == "1" else 50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    seed=st.integers(0, 2**31),
    batches=st.tuples(st.integers(2, 9), st.integers(2, 9)),
    worlds=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stop=st.floats(0, 1),
    epoch=st.integers(0, 3),
)
def test_any_resume_loses_nothing_and_repeats_nothing(
    dots: Path,
    seed: int,
    batches: tuple[int, int],
    worlds: tuple[int, int],
    stop: float,
    epoch: int,
) -> None:
    """An epoch that is cut off after any step, on any number of ranks, and resumed on any other
    with other batches.
    """

    def loaders(batch_size: int, world_size: int) -> list[gpupipe.Loader]:
        config = {"data": {"source": "folder", "root": dots}, "pipeline": ["decode"]}
        options = {
            "engine": "dataloader",
            "workers": 0,
            "device": "cpu",
            "ids": True,
            "seed": seed,
            "batch_size": batch_size,
        }
        return [
            gpupipe.load(config, **options, shard={"rank": r, "world_size": world_size})
            for r in range(world_size)
        ]

    first = loaders(batches[0], worlds[0])
    steps = 1 + int(stop * (len(first[0]) - 1))
    seen: list[int] = []
    states = []
    for loader in first:
        loader.sampler.set_epoch(epoch)
        iterator = iter(loader)
        seen += [i for _ in range(steps) for i in next(iterator)["id"].tolist()]
        states.append(loader.state_dict())
        loader.close()
    assert all(state == states[0] for state in states), "a state does not depend on the rank"
    complete = steps == len(first[0])
    try:
        for loader in (second := loaders(batches[1], worlds[1])):
            loader.load_state_dict(states[0])
    except gpupipe.StateError as e:
        assert 0 < 37 - len(seen) < worlds[1]
        assert "cannot give each of" in str(e)
        return
    rest = [[b["id"].tolist() for b in loader] for loader in second]
    assert len({len(r) for r in rest}) == 1, "equal steps"
    flat = [i for r in rest for b in r for i in b]
    assert sorted(flat if complete else seen + flat) == list(range(37))
    assert all(loader.sampler.epoch == epoch + 1 + complete for loader in second)
    for loader in second:
        loader.close()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 6},
        {"shuffle": False},
        {"pipeline": ["decode", "random_horizontal_flip"]},
        {"data": "fewer"},
    ],
    ids=str,
)
def test_a_state_of_something_else_is_refused_unless_it_need_not_be_the_same(
    dots: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    fewer = sorted(dots.glob("*/*.png"))[:23]
    for n, image in enumerate(fewer):
        (tmp_path / f"{n % 3}").mkdir(exist_ok=True)
        (tmp_path / f"{n % 3}" / image.name).symlink_to(image)
    config: dict[str, Any] = {
        "data": {"source": "folder", "root": str(dots)},
        "pipeline": ["decode"],
    }
    options = {"engine": "dataloader", "workers": 0, "device": "cpu", "ids": True, "batch_size": 10}
    with gpupipe.load(config, **options) as loader:
        iterator = iter(loader)
        states = [loader.state_dict() for _ in iterator]
    other = config | (
        {"data": {"source": "folder", "root": str(tmp_path)}}
        if "data" in change
        else {k: v for k, v in change.items() if k == "pipeline"}
    )
    with gpupipe.load(
        other, **options | {k: v for k, v in change.items() if k in ("seed", "shuffle")}
    ) as loader:
        with pytest.raises(gpupipe.StateError, match="strict=False"):
            loader.load_state_dict(states[1])
        loader.load_state_dict(states[1], strict=False)
        order = loader.sampler.order(0).tolist()
        assert [i for b in loader for i in b["id"].tolist()] == order[20:], (
            "the rest, in its own order"
        )
        loader.load_state_dict(states[2], strict=False)
        assert len(list(loader)) == (1 if len(order) > 30 else 3), (
            "30 of 23 samples are all of them: the next epoch"
        )
