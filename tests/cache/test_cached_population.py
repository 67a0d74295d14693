"""Training over a growing cache, end to end: real workers, a real S3 on loopback, both engines."""

import json
import shutil
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe import config as configs
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.settings import CacheOptions
from gpupipe.testing import check_loader
from helpers.cached_loading import STEPS, Config, complete, ids, load
from helpers.faulty_store import serve
from helpers.full_product import IS_FULL
from helpers.loaders import ENGINES
from helpers.stored_shards import PATTERN


def test_a_store_will_be_listed_until_it_is(config: Config) -> None:
    source = configs.read(config()).source
    assert source.explain_absence() == f"{source.url} will be listed"
    assert len(source.index()) == 60
    assert source.explain_absence() == ""


# That epochs grow with every engine: test_selection.py and test_resume.py.
@pytest.mark.parametrize("options", ENGINES if IS_FULL else ENGINES[:1], ids=str)
def test_epochs_grow_over_s3_until_all_is_there(
    pictures: str, s3: dict[str, Any], faces: Path, config: Config, options: dict[str, Any]
) -> None:
    plain = {"data": {"source": "folder", "root": str(faces)}, "pipeline": STEPS}
    with load(config(url=pictures, storage_options=s3, rate_limit="1500kB"), **options) as loader:
        sizes = []
        while not sizes or sizes[-1] < 60:
            expected, found = len(loader), list(loader)
            assert len(found) == expected
            got = ids(found)
            assert len(got) == len(set(got))
            sizes.append(len(got))
            time.sleep(0.1)
        assert sizes == sorted(sizes)
        assert sizes[0] < 60
        assert len(loader.index) == 60
        with load(plain, **options) as ordinary:
            loader.sampler.set_epoch(20)
            ordinary.sampler.set_epoch(20)
            for a, b in zip(loader, ordinary, strict=True):
                assert a["id"].tolist() == b["id"].tolist()
                assert (a["image"] == b["image"]).all()
                assert (a["label"] == b["label"]).all()


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_the_contract_of_a_loader_holds(
    config: Config, faces: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Of 20 faces: it reads a dozen epochs."""
    for file in sorted(faces.glob("*/*.jpg"))[:20]:
        copy = tmp_path / "faces" / file.relative_to(faces)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    settings = config(workers=0, url=f"file://{tmp_path}/faces", shard_size="30kB")
    complete(settings)
    check_loader(lambda **changes: load(settings, **{**options, **changes}))


def test_the_cache_turns_over_without_exceeding_itself(config: Config) -> None:
    seen: set[int] = set()
    with load(config(max_bytes="600kB", low_water=0.7)) as loader:
        folder = CacheFolder(CacheOptions(**config(max_bytes="600kB")["data"]["cache"]))
        end = time.monotonic() + 60
        while len(seen) < 60:
            assert time.monotonic() < end
            seen |= set(ids(loader))
            with folder.lock():
                assert folder.count_bytes() <= 600_000
            maps = Path("/proc/self/maps").read_text().splitlines()
            assert not [line for line in maps if "/shards/" in line and "(deleted)" in line]
            time.sleep(0.05)
        folder.commit_log.refresh()
        assert len(folder.commit_log.published) > len(folder.commit_log.live_shards())


def test_full_waits_for_the_whole_data_set(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    with load(config(epoch="full", rate_limit="500kB")) as loader:
        assert len(loader) == 15
        assert sorted(ids(loader)) == list(range(60))
    assert "epoch 0 waits: " in (said := caplog.text)
    assert "of 60 samples are in the cache, and data.cache.epoch is full" in said


def test_full_that_cannot_be_is_refused(config: Config) -> None:
    with pytest.raises(
        gpupipe.DataError,
        match=r"the whole data set takes at least [0-9,]+ bytes: data.cache.max_bytes is 500,000; "
        r"make it larger",
    ):
        load(config(epoch="full", max_bytes="500kB"))
    with (
        load(config(epoch="full", max_bytes="1060kB", shard_size="250kB")) as loader,
        pytest.raises(
            gpupipe.DataError,
            match=r"the cache is full before the whole data set is in it: data.cache.max_bytes is "
            r"1,060,000; make it larger",
        ),
    ):
        len(loader)


def test_nobody_at_work_is_said_and_is_an_error_in_the_end(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        load(config(workers=0, wait=1.5)) as loader,
        pytest.raises(
            gpupipe.DataError,
            match=r"epoch 0 waits: nothing is in the cache .*nothing came for . s .*"
            r"no download worker",
        ),
    ):
        next(iter(loader))
    assert "gpupipe cache: epoch 0 waits: nothing is in the cache" in caplog.text


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({}, "epoch 0 cannot begin: nothing is in the cache .*, and .* refuses 6 files, such as b"),
        ({"shards": "{0..2}.tar"}, "epoch 0 cannot begin: 0 shards .*, and .* refuses 3 shards"),
        ({"shards": "{0..2}.npy"}, "the shape of arrays is in the shards, and .* refuses 3 shards"),
        (
            {"shards": "{0..2}.tar", "epoch": "full"},
            "epoch 0 cannot begin: 0 of 3 shards are .*full",
        ),
    ],
)
def test_a_store_that_refuses_all_that_is_listed_is_an_error_at_once(
    config: Config, tmp_path: Path, data: dict[str, Any], said: str
) -> None:
    manifest = tmp_path / "list.csv"
    manifest.write_text("path,label\n" + "".join(f"b/{n}.jpg,{n}\n" for n in range(6)))
    with serve(tmp_path) as (url, faults):
        faults.gone = {"": 10**9}
        settings = config(url=url, **data, wait=86_400)
        if not data:
            settings["data"]["manifest"] = str(manifest)
        elif "npy" in str(data):
            settings["data"]["options"] = {"rows": True, "field": "array"}
            settings["pipeline"] = [{"to_dtype": {"dtype": "float32"}}]
        file = tmp_path / "x.yaml"
        file.write_text(json.dumps(settings))
        where = "" if "npy" in str(data) else rf"{file}:1:\d+: "
        said = rf"^{where}{said}.* does not have it .*see data\.url .* delete {tmp_path}"
        with (
            pytest.raises(gpupipe.DataError, match=said),
            gpupipe.load(file, device="cpu") as loader,
        ):
            len(loader)


@pytest.mark.parametrize("epoch", ["grow", "new"])
def test_the_length_in_an_epoch_is_its_own_and_waits_for_nothing(
    config: Config, make: Any, tars: Path, epoch: str
) -> None:
    filler = make({"url": f"file://{tars}", "shards": PATTERN}).filler
    assert filler.publish_shard() == "published"
    settings = config(url=f"file://{tars}", shards=PATTERN, workers=0, epoch=epoch, wait=86_400)
    with load(settings) as loader:
        first = len(loader)
        batches = iter(loader)
        for n in range(first):
            next(batches)
            assert len(loader) == first, "also with the last batch"
            if not n:
                assert filler.publish_shard() == "published"
        assert next(batches, None) is None
        second = len(loader)
        for _ in loader:
            assert len(loader) == second
            break
        assert filler.publish_shard() == "published"
        following = len(loader)
        assert len(list(loader)) == following, "and not that of the epoch that was left"


def test_what_never_suffices_is_an_error_once_all_is_there(config: Config, tars: Path) -> None:
    said = "60 samples cannot give .* batch of 64 .*, and all of the data set is in the cache"
    settings = config(url=f"file://{tars}", shards="*/*.tar", wait=86_400)
    with (
        load(settings, batch_size=64, last_batch="drop") as loader,
        pytest.raises(gpupipe.DataError, match=said),
    ):
        len(loader)


def test_an_epoch_waits_for_as_many_samples_as_a_step_takes(config: Config) -> None:
    with load(
        config(rate_limit="400kB"),
        batch_size=10,
        last_batch="drop",
        shard={"rank": 0, "world_size": 2},
    ) as loader:
        assert len(loader) >= 1
        assert len(ids(loader)) % 10 == 0


def test_a_store_that_is_not_there_is_named(config: Config) -> None:
    with pytest.raises(gpupipe.DataError, match=r"file:///nowhere.*: no such folder"):
        load(config(url="file:///nowhere"))


def test_a_mended_shard_is_read_anew(config: Config) -> None:
    from gpupipe.cache.fill import Filler
    from gpupipe.cache.maintenance import fetch_missing_shards, remove_damaged_shards
    from gpupipe.cache.store import Store
    from gpupipe.sources.remote import Remote

    settings = config(workers=0)
    folder = complete(settings)
    name = sorted(folder.list_present_shards())[0]
    data = bytearray(folder.shard_path(name).read_bytes())
    data[600:5000] = bytes(4400)
    folder.shard_path(name).write_bytes(data)
    with load(settings) as loader, pytest.raises(gpupipe.SampleError, match=f"{name}.tar"):
        ids(loader)
    with load(settings, on_error="skip", max_bad=0.9) as loader:
        assert len(ids(loader)) < 60
        source = Remote(**{k: v for k, v in settings["data"].items() if k != "source"})
        assert list(remove_damaged_shards(folder, 60, lambda done, total: None)) == [name]
        assert not folder.shard_path(name).exists()
        filler = Filler(folder, source.dataset, Store(source.dataset, 0, 5.0))
        assert fetch_missing_shards(folder, filler) == {}
    with load(settings) as loader:
        assert len(ids(loader)) == 60


def test_a_part_of_the_data_set_is_of_what_is_there(config: Config, faces: Path) -> None:
    from gpupipe import config as configs
    from gpupipe.bench import parity

    checked = configs.read(config(max_bytes="600kB", workers=0), device="cpu")
    index = checked.source.index()
    with pytest.raises(
        gpupipe.DataError, match="nothing is in the cache yet: run 'gpupipe cache fill CONFIG'"
    ):
        list(parity.measure(checked, index, ["cpu"], 8))
    complete(config(max_bytes="600kB"))
    found = checked.source.find_available_rows(index)
    assert found is not None
    assert 0 < len(found) < 60
    for i in found.tolist():
        assert bytes(index.read(i)) == (faces / index.names[i]).read_bytes()
    assert [a.holds for a in parity.measure(checked, index, ["cpu"], 8)] == [True, True]


def test_a_folder_that_is_deleted_meanwhile_is_named(config: Config) -> None:
    settings = config(workers=0)
    folder = complete(settings)
    with load(settings, engine="dataloader", workers=0) as loader:
        ids(loader)
        shutil.rmtree(folder.dir)
        with pytest.raises(gpupipe.DataError, match="the cache's folder is gone"):
            ids(loader)


def test_values_of_a_manifest_come_with_the_batch(
    faces: Path, config: Config, tmp_path: Path
) -> None:
    names = sorted(str(p.relative_to(faces)) for p in faces.glob("*/*.jpg"))
    (tmp_path / "m.csv").write_text(
        "\n".join(
            ["path,label,age", *(f"{name},{n % 3},{n + 0.5}" for n, name in enumerate(names))]
        )
    )
    settings = config(epoch="full")
    settings["data"] |= {"manifest": str(tmp_path / "m.csv"), "values": ["age"]}
    with load(settings) as loader:
        for batch in loader:
            assert (batch["age"] == batch["id"] + 0.5).all()
            assert (batch["label"] == batch["id"] % 3).all()


@pytest.mark.parametrize(
    ("options", "has_manifest"),
    list(product(ENGINES, [False, True]))
    if IS_FULL
    else [(options, n % 2 == 1) for n, options in enumerate(ENGINES)],
    ids=str,
)
def test_a_file_that_changed_after_the_listing_is_a_broken_sample(
    web_faces: tuple[str, Any],
    faces: Path,
    config: Config,
    tmp_path: Path,
    options: dict[str, Any],
    has_manifest: bool,
) -> None:
    from gpupipe import config as configs

    url, faults = web_faces
    names = sorted(str(p.relative_to(faces)) for p in faces.glob("*/*.jpg"))
    settings = config(url=url, epoch="full", retries=0)
    if has_manifest:
        (tmp_path / "m.csv").write_text("\n".join(["path", *names]))
        settings["data"] |= {"manifest": str(tmp_path / "m.csv"), "label": None}
    assert len(configs.read(settings).source.index()) == 60
    faults.changes[names[7]] = 10**9
    with (
        load(settings, **options) as loader,
        pytest.raises(
            gpupipe.SampleError,
            match=rf"{url}/{names[7]}: .*changed since it was listed \(ETag same, now [0-9]+\)",
        ),
    ):
        ids(loader)
    with load(settings, **options, on_error="skip", max_bad=0.1) as loader:
        assert sorted(ids(loader)) == [n for n in range(60) if n != 7]
        state = loader.state_dict()
    with load(settings, **options, on_error="skip", max_bad=0.1) as loader:
        loader.load_state_dict(state)
        assert sorted(ids(loader)) == [n for n in range(60) if n != 7]
