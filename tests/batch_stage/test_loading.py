"""Loaders that mix their batches: what they deliver, and what they go on with after a resume.

The oracle is the batch stage itself, applied by hand to the batches of a loader without it.
"""

import csv
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.batch_stage.mixer import BatchMixer
from gpupipe.batch_stage.steps.mixup import Mixup
from gpupipe.errors import ConfigError, ShapeError, StateError
from helpers.loaders import ENGINES

Batches = list[dict[str, torch.Tensor]]


def epochs(config: dict[str, Any], count: int = 1, **changes: Any) -> list[Batches]:
    """Return the batches of the first epochs, as copies."""
    with gpupipe.load(config, **changes) as loader:
        return [[copy(batch) for batch in loader] for _ in range(count)]


def copy(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in batch.items()}


def same(found: Batches, expected: Batches) -> bool:
    """Whether batches are equal to the bit."""
    return len(found) == len(expected) and all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in zip(found, expected, strict=True)
    )


def mixed_by_hand(config: dict[str, Any], epoch: int = 0, **changes: Any) -> Batches:
    """Return the batches of an epoch, mixed outside of the loader."""
    with gpupipe.load(config, **changes) as loader:
        stage, index = loader.mixer.stage, loader.index
    mixer = BatchMixer(stage, changes.get("seed", 5), index.classes)
    plain = epochs(config, epoch + 1, **changes | {"batch": []})[epoch]
    return [mixer.mix(epoch, batch["id"].numpy(), batch) for batch in plain]


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_every_engine_delivers_mixed_batches(
    config: dict[str, Any], options: dict[str, Any]
) -> None:
    found = epochs(config, 2, **options)
    for epoch in range(2):
        assert same(found[epoch], mixed_by_hand(config, epoch, **options))
    sizes = [len(batch["label"]) for batch in found[0]]
    assert sizes == [4, 4, 4, 4, 4, 3]
    for batch in found[0]:
        assert batch["label"].shape == (len(batch["id"]), 3)
        assert torch.allclose(batch["label"].sum(1), torch.ones(len(batch["id"])))
    assert not same(found[0], epochs(config, batch=[], **options)[0])


def test_engines_agree(config: dict[str, Any]) -> None:
    """The tolerance is that of to_dtype: a unit in the last place."""
    *others, reference = (epochs(config, **options)[0] for options in ENGINES)
    for other in others:
        for a, b in zip(other, reference, strict=True):
            assert torch.equal(a["id"], b["id"])
            assert torch.equal(a["label"], b["label"])
            assert torch.allclose(a["image"], b["image"], atol=1e-6)


@pytest.mark.parametrize("options", ENGINES, ids=str)
@pytest.mark.parametrize("taken", [1, 4, 6])
def test_a_resume_in_mid_epoch_repeats_the_draws(
    config: dict[str, Any], options: dict[str, Any], taken: int
) -> None:
    first, second = epochs(config, 2, **options)
    with gpupipe.load(config, **options) as loader:
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
    with gpupipe.load(config, **options) as loader:
        loader.load_state_dict(state)
        if taken < len(first):
            assert same([copy(batch) for batch in loader], first[taken:])
        assert same([copy(batch) for batch in loader], second)


def test_a_resume_with_another_batch_stage_is_refused(config: dict[str, Any]) -> None:
    with gpupipe.load(config) as loader:
        next(iter(loader))
        mixed = loader.state_dict()
    with gpupipe.load(config, batch=[]) as loader:
        next(iter(loader))
        plain = loader.state_dict()
        assert "batch" not in plain, "states from before the batch stage are as before"
    fingerprint = mixed["batch"]
    for state, changes, words in (
        (mixed, {"batch": []}, f"batch {fingerprint} there, none here"),
        (plain, {}, f"batch none there, {fingerprint} here"),
        (mixed, {"batch": ["mixup"]}, f"batch {fingerprint} there, "),
        (mixed, {"batch": [*config["batch"], "one_hot"]}, "another batch stage"),
    ):
        with gpupipe.load(config, **changes) as loader:
            with pytest.raises(StateError, match=words):
                loader.load_state_dict(state)
            loader.load_state_dict(state, strict=False)
            assert len(list(loader)) == 5
    with gpupipe.load(config) as loader, pytest.raises(StateError, match="'batch' is 7"):
        loader.load_state_dict(mixed | {"batch": 7})


def test_draws_depend_on_the_batch_and_on_nothing_else(config: dict[str, Any]) -> None:
    """Law 1's exception: another batch size is another mix; the way of loading is not."""
    expected = epochs(config)[0]
    assert same(epochs(config, threads=1, prefetch=5)[0], expected)
    with gpupipe.load(config) as loader:
        loader.sampler.set_epoch(1)
        next(iter(loader))
        loader.sampler.set_epoch(0)
        assert same([copy(batch) for batch in loader], expected)
    alone = {int(b["id"]): b["image"][0] for b in epochs(config, batch_size=1)[0]}
    plain = {int(b["id"]): b["image"][0] for b in epochs(config, batch_size=1, batch=[])[0]}
    assert all(torch.equal(alone[i], plain[i]) for i in plain), "a batch of one is not mixed"


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_mix_their_own_batches(config: dict[str, Any], rank: int) -> None:
    shard = {"rank": rank, "world_size": 2}
    assert same(epochs(config, shard=shard)[0], mixed_by_hand(config, shard=shard))


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_the_ids_of_the_delivered_batch_count(
    config: dict[str, Any], noise: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """A sample that is skipped is not in its batch, and not in its hash."""
    for file in noise.glob("*/*.png"):
        (tmp_path / file.parent.name).mkdir(exist_ok=True)
        (tmp_path / file.parent.name / file.name).write_bytes(file.read_bytes())
    (tmp_path / "c1" / "04.png").write_bytes(b"no image")
    changes: dict[str, Any] = {"data": {"root": str(tmp_path)}, "on_error": "skip", "max_bad": 0.5}
    found = epochs(config, **changes, **options)[0]
    assert sorted(len(batch["id"]) for batch in found) == [3, 3, 4, 4, 4, 4]
    assert same(found, mixed_by_hand(config, **changes, **options))


@pytest.mark.parametrize("is_thread_safe", [True, False])
def test_the_cpu_engine_mixes_on_its_own_threads(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, is_thread_safe: bool
) -> None:
    """Unless a step may run on one thread only. Either way no batch that is kept changes."""
    threads: set[threading.Thread] = set()
    mix = Mixup.torch

    def note_thread(*args: Any) -> Any:
        threads.add(threading.current_thread())
        return mix(*args)

    monkeypatch.setattr(Mixup, "torch", note_thread)
    monkeypatch.setattr(Mixup, "is_thread_safe", is_thread_safe)
    with gpupipe.load(config, engine="cpu", threads=3, prefetch=4) as loader:
        kept = [list(loader) for _ in range(2)]
    assert threads
    assert (threading.current_thread() in threads) is not is_thread_safe
    for epoch, batches in enumerate(kept):
        assert same(batches, mixed_by_hand(config, epoch, engine="cpu"))


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_an_error_of_mixing_comes_in_the_place_of_its_batch(options: dict[str, Any]) -> None:
    """The label of sample 9 is no class, which is known once the sample is read."""

    class Noise(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, n: int) -> Any:
            pixels = np.random.default_rng(n).random((3, 6, 5), np.float32)
            return pixels, n % 3 if n != 9 else 3

    settings: dict[str, Any] = {"device": "cpu", "batch_size": 2, "shuffle": False, "prefetch": 5}
    batch = [{"mixup": {"num_classes": 3}}]
    with gpupipe.load(Noise(), pipeline=[], batch=batch, **settings, **options) as loader:
        for _ in range(2):
            iterator = iter(loader)
            for n in range(4):
                label = next(iterator)["label"]
                assert label.shape == (2, 3)
                assert (label.sum(0) > 0).nonzero().flatten().tolist() == sorted(
                    {2 * n % 3, (2 * n + 1) % 3}
                )
            with pytest.raises(ShapeError, match=r"a sample has the label 3, .* 0 to 2"):
                next(iterator)
            assert loader.state_dict()["position"] == 8
            loader.sampler.set_epoch(0)


def test_tuples_have_soft_labels(config: dict[str, Any]) -> None:
    expected = epochs(config)[0]
    with gpupipe.load(config, format="tuple") as loader:
        for (image, label), batch in zip(loader, expected, strict=True):
            assert torch.equal(image, batch["image"])
            assert torch.equal(label, batch["label"])


def test_a_loader_says_how_it_mixes(config: dict[str, Any]) -> None:
    with gpupipe.load(config) as loader:
        assert "mixed by:  one_hot, random_choice" in repr(loader)
    with gpupipe.load(config, batch=[]) as loader:
        assert "mixed by" not in repr(loader)


def test_data_without_labels_is_refused(
    config: dict[str, Any], noise: Path, tmp_path: Path
) -> None:
    names = sorted(str(file.relative_to(noise)) for file in noise.glob("*/*.png"))
    with (tmp_path / "list.csv").open("w") as out:
        csv.writer(out).writerows([["path"], *([name] for name in names)])
    data = {"source": "file_list", "file": str(tmp_path / "list.csv"), "path": "path"}
    data["root"] = str(noise)
    (tmp_path / "c.yaml").write_text(
        json.dumps(config | {"data": data, "batch": ["cutmix"]}, indent=1)
    )
    line = (tmp_path / "c.yaml").read_text().split("\n").index('  "cutmix"') + 1
    with pytest.raises(ConfigError, match=rf"c\.yaml:{line}:.*cutmix.*the data has none"):
        gpupipe.load(tmp_path / "c.yaml")
    with gpupipe.load(tmp_path / "c.yaml", batch=[]) as loader:
        assert "label" not in next(iter(loader))


def test_fewer_classes_than_the_data_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"batch\.0: mixup .*num_classes is 2.*3 classes"):
        gpupipe.load(config, batch=[{"mixup": {"num_classes": 2}}])
    with gpupipe.load(config, batch=[{"mixup": {"num_classes": 8}}]) as loader:
        assert next(iter(loader))["label"].shape == (4, 8)


def test_check_loader_needs_a_config_without_it(config: dict[str, Any]) -> None:
    from gpupipe.testing import check_loader

    with pytest.raises(AssertionError, match="a config without 'batch:'"):
        check_loader(lambda **changes: gpupipe.load(config, **changes))


def test_arrays_are_mixed(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for name in "ab":
        (tmp_path / name).mkdir()
        for n in range(3):
            np.save(tmp_path / name / f"{n}.npy", rng.random((9, 8, 2), dtype=np.float32))
    config = {
        "data": {"source": "numpy", "root": str(tmp_path), "layout": "HWC"},
        "pipeline": [],
        "batch": ["cutmix", "mixup"],
        "loader": {"device": "cpu", "batch_size": 3, "ids": True, "seed": 5},
    }
    found = epochs(config)[0]
    assert same(found, mixed_by_hand(config))
    (name,) = set(found[0]) - {"label", "id"}
    assert found[0][name].shape == (3, 9, 8, 2)
    assert not same(found, epochs(config, batch=[])[0])
