"""Random resumes, 50 or with GPUPIPE_TEST_ALL=1 (`make test-all`) 200; states of something else."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpupipe


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
