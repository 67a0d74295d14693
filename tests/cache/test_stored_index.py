"""Training over a growing cache of a store's shards: ids, labels, pixels, growth, faults."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe import config as configs
from gpupipe.bench import parity
from gpupipe.cache import evict
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.settings import CacheOptions
from gpupipe.cache.stored_fill import name_of
from gpupipe.cache.stored_index import StoredLocations
from gpupipe.cache.stored_samples import SampleTable
from gpupipe.testing import check_loader
from helpers.cache_contents import disk_size
from helpers.cached_loading import Config, complete, ids, load
from helpers.faulty_store import serve
from helpers.full_product import IS_FULL
from helpers.loaders import ENGINES
from helpers.stored_shards import NAMES, PATTERN, cached

WORKERS = [*ENGINES[:2], {"engine": "dataloader", "workers": 2}]
COUNTS = dict(zip(NAMES, (7, 9, 9, 11, 12, 12), strict=True))
IDS = sorted(
    (shard << 32) + n for shard, name in enumerate(sorted(NAMES)) for n in range(COUNTS[name])
)


@pytest.fixture
def settings(config: Config, tars: Path) -> Any:
    """Makes the config of a cache of the tars, with options of the cache."""

    def make(**options: Any) -> dict[str, Any]:
        return config(**{"url": f"file://{tars}", "shards": PATTERN} | options)

    return make


def folder_of(settings: dict[str, Any]) -> CacheFolder:
    folder = CacheFolder(CacheOptions(**settings["data"]["cache"]))
    folder.commit_log.refresh()
    return folder


@pytest.mark.parametrize("options", ENGINES if IS_FULL else ENGINES[0:1], ids=str)
def test_an_epoch_is_a_permutation_of_what_is_there_with_the_pixels_of_the_shards(
    settings: Any, faces: Path, options: dict[str, Any]
) -> None:
    files = sorted(faces.glob("*/*.jpg"))[:60]
    with load(settings(), **options) as loader:
        sizes = []
        while not sizes or sizes[-1] < 60:
            expected, found = len(loader), list(loader)
            assert len(found) == expected
            got = ids(found)
            assert len(got) == len(set(got)) <= len(loader.index)
            assert set(got) <= set(IDS)
            sizes.append(len(got))
        assert sizes == sorted(sizes)
        assert sorted(ids(loader)) == IDS
        for batch in loader:
            for id, label in zip(batch["id"].tolist(), batch["label"].tolist(), strict=True):
                assert loader.index.location(id).endswith(f".tar:s/{label:06}")
                assert bytes(loader.index.read(id)) == files[label].read_bytes()


@pytest.mark.parametrize("options", ENGINES if IS_FULL else ENGINES[1:2], ids=str)
def test_draws_do_not_depend_on_what_came_first(
    settings: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    batches = []
    for seed in (1, 2):
        config = settings(dir=str(tmp_path / str(seed)), workers=0)
        config["data"]["seed"] = seed
        folder = complete(config)
        folder.commit_log.refresh()
        names = list(folder.commit_log.live_shards())
        with load(config, **options) as loader:
            batches.append((names, list(loader)))
    assert batches[0][0] != batches[1][0]
    for a, b in zip(batches[0][1], batches[1][1], strict=True):
        assert a["id"].tolist() == b["id"].tolist()
        assert (a["image"] == b["image"]).all()


def test_the_contract_of_a_loader_holds(settings: Any) -> None:
    config = settings(workers=0)
    complete(config)
    check_loader(lambda **changes: load(config, **{"engine": "cpu", **changes}))


def test_the_cache_turns_over_without_exceeding_itself(settings: Any) -> None:
    config = settings(max_bytes="800kB", low_water=0.6)
    seen: set[int] = set()
    with load(config) as loader:
        end = time.monotonic() + 100
        while len(seen) < 60:
            assert time.monotonic() < end
            seen |= set(ids(loader))
            time.sleep(0.1)  # the shards are fetched meanwhile
            assert disk_size(folder_of(config).dir) <= 800_000
    published = folder_of(config).commit_log.publication_generations()
    assert set(published) == set(map(name_of, range(6)))


def test_the_first_epoch_waits_for_min_shards_and_full_for_all(
    settings: Any, tmp_path: Path
) -> None:
    with load(settings(min_shards=3, rate_limit="1MB")) as loader:
        assert len({id >> 32 for id in ids(loader)}) >= 3
    with load(settings(epoch="full", dir=str(tmp_path / "full"))) as loader:
        assert sorted(ids(loader)) == IDS


@pytest.mark.parametrize("options", ENGINES if IS_FULL else ENGINES[2:3], ids=str)
def test_ranks_deal_out_each_sample_once_and_a_resume_sees_the_rest(
    settings: Any, options: dict[str, Any]
) -> None:
    config = settings(workers=0)
    folder = complete(config)
    ranks = [{"rank": n, "world_size": 2} for n in range(2)]
    with (
        load(config, shard=ranks[0], **options) as one,
        load(config, shard=ranks[1], **options) as two,
    ):
        assert len(one) == len(two)
        mine = ids(one)
        assert sorted(mine + ids(two)) == IDS
    with load(config, **options) as loader:
        epoch = iter(loader)
        before = ids([next(epoch) for _ in range(3)])
        state = json.loads(json.dumps(loader.state_dict()))
    with folder.lock():  # the shards must come again
        evict.evict_down_to(folder, 0)
    with load(settings(), **options) as loader:
        loader.load_state_dict(state)
        assert sorted(before + ids(loader)) == IDS


def test_new_brings_each_sample_once_before_any_comes_again(
    settings: Any, make: Any, tars: Path
) -> None:
    config = settings(workers=0, epoch="new", wait=0.3)
    filler = make({"url": f"file://{tars}", "shards": PATTERN}).filler

    def publish(count: int) -> None:
        assert [filler.publish_shard() for _ in range(count)] == ["published"] * count

    publish(2)
    ranks = [{"rank": n, "world_size": 2} for n in range(2)]
    with (
        load(config, shard=ranks[0], engine="cpu") as one,
        load(config, shard=ranks[1], engine="cpu") as two,
    ):
        mine = ids(one)
        publish(1)  # of the next epoch, though a rank begins the first one only now
        seen = mine + ids(two)
        assert len({id >> 32 for id in seen}) == 2
        seen += ids(two) + ids(one)
        assert len({id >> 32 for id in seen}) == 3
        state = json.loads(json.dumps(one.state_dict()))
        with pytest.raises(gpupipe.DataError, match=r"0 new shards of the 1 of data\.cache"):
            ids(one)
    with load(config, engine="cpu") as loader:
        loader.load_state_dict(state)  # which waits for nothing
        publish(2)
        epoch = iter(loader)
        seen += ids([next(epoch)])
        state = json.loads(json.dumps(loader.state_dict()))
    publish(1)
    with load(config, engine="cpu") as loader:
        loader.load_state_dict(state)
        seen += ids(loader)
        assert len({id >> 32 for id in seen}) == 5
        assert sorted(seen + ids(loader)) == IDS
        assert sorted(ids(loader)) == IDS
    with load(config, engine="cpu") as loader:
        assert sorted(ids(loader)) == IDS


def test_new_brings_each_shard_once_a_pass_through_a_small_cache(settings: Any) -> None:
    config = settings(epoch="new", max_bytes="800kB", low_water=0.6, workers=2)
    counts = dict.fromkeys(IDS, 0)
    with load(config, engine="cpu") as loader:
        while min(counts.values()) < 2:
            for id in ids(loader):
                counts[id] += 1
            assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("fault", ["forbidden", "gone", "damaged"])
def test_new_waits_for_no_shard_that_the_store_refuses(
    settings: Any, tars: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], fault: str
) -> None:
    root = Path(shutil.copytree(tars, tmp_path / "copy"))
    shard = sorted(NAMES).index(NAMES[3])
    rest = [id for id in IDS if id >> 32 != shard]
    with serve(root) as (url, faults):
        if fault == "damaged":
            (root / NAMES[3]).write_bytes((root / NAMES[3]).read_bytes()[:-100_000])
        else:
            getattr(faults, fault)[NAMES[3]] = 10**9
        config = settings(url=url, shards=NAMES, epoch="new", workers=2, wait=60)
        with load(config, engine="cpu", on_error="skip", max_bad=0.9) as loader:
            seen: list[int] = []
            while len(seen) < len(rest):
                seen += ids(loader)
            assert sorted(seen) == rest
            for _ in range(2):
                assert sorted(ids(loader)) == rest
        attempts = sum(path.endswith(NAMES[3]) for path in faults.asked)
    assert attempts <= 8, "the pauses between attempts of two workers"
    said = capfd.readouterr().err
    assert f"{NAMES[3]}: " in said
    assert "is tried again later" in said


@pytest.mark.parametrize("options", WORKERS if IS_FULL else WORKERS[1:], ids=str)
def test_a_damaged_shard_is_fetched_again_and_never_trained_on(
    settings: Any, faces: Path, options: dict[str, Any]
) -> None:
    folder = complete(settings(workers=0))
    with load(settings(workers=0), **options) as loader:
        expected = {i: image for b in loader for i, image in zip(ids([b]), b["image"], strict=True)}
    for file in list(cached(folder).values())[1:4]:
        content = bytearray(file.read_bytes())
        for at in range(5000, len(content), 9000):
            content[at] ^= 0x55
        file.write_bytes(content)
    folder.shard_path(name_of(5)).unlink()
    with load(settings(workers=1), **options) as loader:
        found = {i: image for b in loader for i, image in zip(ids([b]), b["image"], strict=True)}
    assert sorted(found) == IDS
    assert all((found[i] == expected[i]).all() for i in IDS)
    cached(folder)


@pytest.mark.parametrize("options", ENGINES if IS_FULL else ENGINES[0:1], ids=str)
def test_a_shard_that_is_broken_in_the_store_is_a_broken_sample(
    settings: Any, tars: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    root = Path(shutil.copytree(tars, tmp_path / "copy"))
    whole = (root / NAMES[3]).read_bytes()
    (root / NAMES[3]).write_bytes(whole[:-100_000])
    config = settings(url=f"file://{root}", epoch="full", retries=0)
    said = rf"file://{root}/{NAMES[3]}: .*cut off: the member at byte [0-9,]+ ends "
    with load(config, **options) as loader, pytest.raises(gpupipe.SampleError, match=said):
        ids(loader)
    shard = sorted(NAMES).index(NAMES[3])
    rest = [id for id in IDS if id >> 32 != shard]
    with load(config, **options, on_error="skip", max_bad=0.1) as loader:
        assert sorted(ids(loader)) == rest
        state = loader.state_dict()
        assert state["skipped"] == [shard << 32]
    with load(config, **options, on_error="skip", max_bad=0.1) as loader:
        loader.load_state_dict(state)
        assert sorted(ids(loader)) == rest


def test_a_cache_that_is_too_small_is_refused(settings: Any) -> None:
    said = (
        r"the two largest shards take [0-9,]+ bytes, with what .* data.cache.max_bytes is 300,000"
    )
    with pytest.raises(gpupipe.DataError, match=said):
        load(settings(max_bytes="300kB"))
    with pytest.raises(gpupipe.DataError, match=r"all shards take [0-9,]+ bytes"):
        load(settings(max_bytes="800kB", epoch="full"))
    said = r"the 4 largest shards \(data.cache.min_shards\) take .* is 700,000: make it larger"
    with pytest.raises(gpupipe.DataError, match=said):
        load(settings(max_bytes="700kB", min_shards=4))


@pytest.mark.parametrize("epoch", ["grow", "new"])
def test_epochs_go_on_where_no_more_than_min_shards_fit(settings: Any, epoch: str) -> None:
    config = settings(max_bytes="650kB", min_shards=2, epoch=epoch, wait=15)
    with load(config, engine="cpu") as loader:
        for number in range(3):
            expected, batches = len(loader), list(loader)  # the first waits for the next epoch
            assert len(batches) == expected
            assert number or len({id >> 32 for id in ids(batches)}) >= 2


def test_only_the_first_growing_epoch_waits_for_min_shards(make: Any, tars: Path) -> None:
    made = make({"url": f"file://{tars}", "shards": PATTERN}, min_shards=2)
    assert made.filler.publish_shard() == "published"
    made.folder.commit_log.refresh()
    shards = made.folder.commit_log.live_shards()
    table = SampleTable(made.folder, made.listing, made.dataset, ["image"])
    locations = StoredLocations(made.folder, table)
    assert locations.explain_wait(shards, 0, 5).startswith("1 shard of the 2 of")
    locations.locate(shards)
    assert not locations.explain_wait(shards, 0, 5)


def test_commands_read_what_is_there(settings: Any) -> None:
    complete(settings())
    checked = configs.read(settings(workers=0), device="cpu")
    index = checked.source.index()
    assert index.summary == "60 samples with labels"
    assert [a.holds for a in parity.measure(checked, index, ["cpu"], 8)] == [True, True]


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ({"weights": "class_balanced"}, "the samples come with their shards"),
        ({"subset": 0.5}, "has other samples in every epoch"),
    ],
)
def test_settings_that_need_all_samples_are_refused(
    settings: Any, loader: dict[str, Any], said: str
) -> None:
    with pytest.raises(gpupipe.ConfigError, match=said):
        load(settings(), **loader)
