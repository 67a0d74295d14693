"""Iterations that are given up, that overlap, and batches that are held: nothing of one gets into
another.
"""

import gc
import itertools
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from helpers.loaders import loading

STEPS = [
    "decode",
    {"random_affine": {"degrees": 20, "translate": [0.1, 0.1], "interpolation": "bilinear"}},
    {"random_crop": {"size": 40}},
]
Epoch = list[tuple[int, int, torch.Tensor]]


Open = Callable[..., gpupipe.Loader]
"""What `open_loader` is."""


@pytest.fixture(scope="module", params=["cpu", "dali"])
def open_loader(request: pytest.FixtureRequest, small_faces: Path) -> Open:
    """Opens a loader of small faces, or of the folder `root`, on the engine of the test."""
    load_faces = loading(STEPS, engine=request.param, threads=2, batch_size=8)

    def open_faces(root: Path = small_faces, **options: Any) -> gpupipe.Loader:
        return load_faces(root, **options)

    return open_faces


def samples(batches: Any) -> Epoch:
    return [
        sample
        for b in batches
        for sample in zip(b["id"].tolist(), b["label"].tolist(), b["image"], strict=True)
    ]


def same(one: Epoch, other: Epoch) -> bool:
    return [s[:2] for s in one] == [s[:2] for s in other] and all(
        torch.equal(a[2], b[2]) for a, b in zip(one, other, strict=True)
    )


@pytest.fixture(scope="module")
def epochs(open_loader: Open) -> list[Epoch]:
    """Four epochs in batches of one, undisturbed."""
    with open_loader(batch_size=1, threads=1, prefetch=1) as loader:
        return [samples(loader) for _ in range(4)]


def test_epochs_differ_in_order_and_in_draws(epochs: list[Epoch]) -> None:
    """Without which nothing below would be shown."""
    by_id = [{id: image for id, _, image in epoch} for epoch in epochs]
    assert all(sorted(images) == list(range(60)) for images in by_id)
    for one, other in itertools.combinations(range(4), 2):
        assert [s[0] for s in epochs[one]] != [s[0] for s in epochs[other]]
        assert not any(torch.equal(by_id[one][i], by_id[other][i]) for i in range(60))


@pytest.mark.parametrize("prefetch", [1, 2, 8])
@pytest.mark.parametrize("taken", [0, 1, 3, 7, 8])
def test_after_a_break_comes_exactly_the_next_epoch(
    open_loader: Open, epochs: list[Epoch], prefetch: int, taken: int
) -> None:
    with open_loader(prefetch=prefetch) as loader:
        for epoch in range(3):
            got = samples(itertools.islice(loader, taken))
            assert same(got, epochs[epoch][: len(got)])
            assert len(got) == min(60, 8 * taken)
        assert same(samples(loader), epochs[3 if taken else 0]), (
            "an iteration of which nothing was taken is none"
        )


def test_the_next_epoch_is_prepared_before_it_is_asked_for(
    open_loader: Open, small_faces: Path, epochs: list[Epoch], tmp_path: Path
) -> None:
    for seconds in (0.3, 3, 30):  # the first is enough, unless there is much load beside it
        root = shutil.copytree(small_faces, tmp_path / f"faces{seconds}")
        with open_loader(root, prefetch=2) as loader:
            assert same(samples(loader), epochs[0])
            time.sleep(seconds)
            shutil.rmtree(root)
            with suppress(gpupipe.SampleError):
                assert same(samples(itertools.islice(loader, 2)), epochs[1][:16])
                return
    pytest.fail("nothing was made while there were files")


def test_an_epoch_that_is_set_between_epochs_is_the_one_that_comes(
    open_loader: Open, epochs: list[Epoch]
) -> None:
    with open_loader(prefetch=3) as loader:
        assert same(samples(loader), epochs[0])
        for number in (3, 0, 1, 1, 2, 3):
            loader.sampler.set_epoch(number)
            assert same(samples(loader), epochs[number])


def test_which_epoch_it_is_is_settled_by_the_first_batch(
    open_loader: Open, epochs: list[Epoch]
) -> None:
    """Lightning makes the iterator first, and says then which epoch it is to be."""
    with open_loader() as loader:
        iter(loader)
        iterator = iter(loader)
        loader.sampler.set_epoch(2)
        assert same(samples(iterator), epochs[2])


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_an_old_iterator_says_that_a_newer_one_ended_it(
    open_loader: Open, epochs: list[Epoch], taken: int
) -> None:
    with open_loader(prefetch=4) as loader:
        old = iter(loader)
        assert same(samples(itertools.islice(old, taken)), epochs[0][: 8 * taken])
        new = iter(loader)
        first = next(new)
        with pytest.raises(
            gpupipe.GpupipeError, match=r"ended by a newer iter\(\).*load\(\) a second loader"
        ):
            next(old)
        assert same(samples([first, *new]), epochs[1 if taken else 0]), (
            "and the newer one does not suffer from it"
        )


def test_two_loaders_run_side_by_side(open_loader: Open, epochs: list[Epoch]) -> None:
    with open_loader(prefetch=3) as one, open_loader(prefetch=3) as other:
        pairs = list(zip(one, other, strict=True))
    assert same(samples(a for a, _ in pairs), epochs[0])
    assert same(samples(b for _, b in pairs), epochs[0])


@pytest.mark.parametrize("batch_size", [1, 8, 60])
def test_held_batches_stay_what_they_were_under_deep_prefetch(
    open_loader: Open, epochs: list[Epoch], batch_size: int
) -> None:
    """All batches of two epochs are held until the end: an output buffer that were used again would
    show.
    """
    with open_loader(prefetch=8, batch_size=batch_size) as loader:
        held = [list(loader), list(loader)]
    gc.collect()
    for epoch, batches in enumerate(held):
        assert same(samples(batches), epochs[epoch])


def test_held_batches_outlive_the_loader_and_what_comes_after(
    open_loader: Open, epochs: list[Epoch]
) -> None:
    with open_loader(prefetch=8) as loader:
        held = list(itertools.islice(loader, 3))
    del loader
    gc.collect()
    with open_loader(prefetch=8, seed=5) as later:
        samples(later)
        assert same(samples(held), epochs[0][:24])


def test_a_batch_may_be_changed_by_whom_it_was_given_to(
    open_loader: Open, epochs: list[Epoch]
) -> None:
    with open_loader(prefetch=4) as loader:
        for batch in loader:
            batch["image"].zero_()
            batch["label"].fill_(-1)
            batch["id"].fill_(-1)
        assert same(samples(loader), epochs[1])
    assert int(loader.index.labels.min()) == 0


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_held_batches_of_floats(open_loader: Open, epochs: list[Epoch], dtype: str) -> None:
    with open_loader(prefetch=8, dtype=dtype, memory_format="channels_last") as loader:
        held = samples(list(loader))
    assert same([(i, label, image.float().to(torch.uint8)) for i, label, image in held], epochs[0])


def test_after_an_error_in_the_users_loop(open_loader: Open, epochs: list[Epoch]) -> None:
    with open_loader(prefetch=4) as loader:
        with pytest.raises(ZeroDivisionError):
            for _ in loader:
                1 / 0  # noqa: B018
        assert same(samples(loader), epochs[1])


def test_after_abandoned_iterations_a_state_is_of_the_last_one(
    open_loader: Open, epochs: list[Epoch]
) -> None:
    with open_loader(prefetch=4) as loader:
        samples(itertools.islice(loader, 5))
        got = samples(itertools.islice(loader, 2))
        state = loader.state_dict()
    with open_loader(prefetch=2, batch_size=7) as resumed:
        resumed.load_state_dict(state)
        assert same([*got, *samples(resumed)], epochs[1])
        assert same(samples(resumed), epochs[2])


def test_behind_an_epoch_whose_last_batches_were_skipped_stands_the_next_epoch(
    open_loader: Open, small_faces: Path, tmp_path: Path
) -> None:
    root = tmp_path / "set" / "one"
    root.mkdir(parents=True)
    for n, file in enumerate(sorted(small_faces.glob("*/*.jpg"))[:12]):
        (root / f"{n:02d}.jpg").write_bytes(file.read_bytes() if n < 8 else b"not an image")
    with open_loader(
        root.parent, batch_size=4, shuffle=False, on_error="skip", max_bad=0.5
    ) as loader:
        assert [b["id"].tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (1, 0)
        loader.load_state_dict(state)
        assert len(list(loader)) == 2


def test_a_loader_that_a_garbage_collection_finds_goes_silently(open_loader: Open) -> None:
    """In a cycle, as behind an exception, with an iteration under way: whatever is taken down
    first.
    """
    gc.collect()
    for _ in range(5):
        loader = open_loader(prefetch=3)
        iterator = iter(loader)
        next(iterator)
        cycle = {"iterator": iterator, "loader": loader}
        cycle["cycle"] = cycle
        del loader, iterator, cycle
        gc.collect()
