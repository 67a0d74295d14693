"""Training over a growing cache, end to end: real workers, a real S3 on loopback, both engines."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.cache import evict
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.settings import CacheOptions
from gpupipe.testing import check_loader

STEPS = ["decode", {"random_crop": {"size": 64}}]
ENGINES: list[dict[str, Any]] = [{"engine": "dali"}, {"engine": "dataloader", "workers": 0}]


@pytest.fixture(scope="module")
def pictures(faces: Path, s3: dict[str, Any]) -> str:
    """60 faces in S3, about 850 kB."""
    import s3fs

    files = s3fs.S3FileSystem(**s3)
    if not files.exists("faces"):
        files.mkdir("faces")
        files.put(f"{faces}/", "faces/", recursive=True)
    return "s3://faces"


Config = Callable[..., dict[str, Any]]


@pytest.fixture
def config(faces: Path, tmp_path: Path) -> Config:
    """Makes the config of a cache of the faces in a folder of its own; by default straight from the
    disk.
    """

    def made(**cache: Any) -> dict[str, Any]:
        data: dict[str, Any] = {
            "source": "remote",
            "url": cache.pop("url", f"file://{faces}"),
            "storage_options": cache.pop("storage_options", {}),
        }
        options = {
            "dir": str(tmp_path / "cache"),
            "max_bytes": "2MB",
            "shard_size": "60kB",
            "workers": 1,
        } | cache
        return {"data": data | {"cache": options}, "pipeline": STEPS}

    return made


def load(config: dict[str, Any], **options: Any) -> gpupipe.Loader:
    return gpupipe.load(config, **{"device": "cpu", "ids": True, "batch_size": 4, **options})


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["id"]]


def complete(config: dict[str, Any]) -> CacheFolder:
    """The cache's folder, when all is in it."""
    from gpupipe import config as configs
    from gpupipe.cache.worker_pool import WorkerPool

    source: Any = configs.read(config).source
    source.index()
    workers = WorkerPool(source.dataset, source.cache, 1, "fill")
    while workers.read_outcomes() is None:
        time.sleep(0.02)
    workers.stop()
    return CacheFolder(source.cache)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def waited(what: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What `what` gives when it gives anything."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("options", ENGINES, ids=str)
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
def test_the_contract_of_a_loader_holds(config: Config, options: dict[str, Any]) -> None:
    settings = config(workers=0)
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
    with pytest.raises(gpupipe.DataError, match=r"file:///nowhere.*: no files that end in"):
        load(config(url="file:///nowhere"))


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_a_resume_in_mid_epoch_sees_the_rest_though_the_cache_went_on(
    config: Config, options: dict[str, Any]
) -> None:
    settings = config(max_bytes="600kB", low_water=0.5)
    with load(settings, **options) as loader:
        for _ in range(2):
            ids(loader)
        rest: list[int] = []
        while not rest:  # an epoch is a single batch as long as little is there
            whole = iter(loader)
            before = ids([next(whole)])
            state = json.loads(json.dumps(loader.state_dict()))
            rest = ids(whole)
        folder = CacheFolder(CacheOptions(**settings["data"]["cache"]))
        while True:
            ids(loader)
            folder.commit_log.refresh()
            had = folder.commit_log.live_shards(state["generation"])
            if not had.keys() <= folder.list_present_shards():
                break
            time.sleep(0.1)
    assert before and not set(before) & set(rest)
    with load(settings, **options, batch_size=3) as again:
        again.load_state_dict(state)
        assert ids(again) == rest
        assert again.state_dict()["epoch"] == state["epoch"] + 1


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_the_rest_of_an_epoch_does_not_wait_for_the_next(
    config: Config, options: dict[str, Any]
) -> None:
    settings = config(workers=0, wait=1.5)
    folder = complete(settings)
    with load(settings, **options) as loader:
        before = ids([next(iter(loader))])
        state = loader.state_dict()
    with load(settings, **options) as again:
        again.load_state_dict(state)  # pins its generation
        with folder.lock():
            evict.evict(
                folder, list(folder.commit_log.live_shards()), "no room is left for the next epoch"
            )
        assert sorted(before + ids(again)) == list(range(60))
        with pytest.raises(gpupipe.DataError, match="epoch 1 waits: nothing is in the cache"):
            next(iter(again))


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_an_epoch_that_was_not_ready_begins_when_it_is(
    config: Config, options: dict[str, Any]
) -> None:
    settings = config(workers=0)
    folder = complete(settings)
    with load(settings, **options) as loader:
        epoch = iter(loader)
        first = ids([next(epoch)])  # pins the generation of epoch 0
        with folder.lock():
            evict.evict(folder, list(folder.commit_log.live_shards()), "epoch 1 has to wait")
        assert sorted(first + ids(epoch)) == list(range(60))
        with load(config(workers=1), **options):  # its worker fetches again
            assert ids(loader)
        assert loader.state_dict()["epoch"] == 2


TRAIN = """
import json, sys, gpupipe
options = dict(device="cpu", ids=True, batch_size=4, engine="dataloader", workers=0)
with gpupipe.load(json.loads(sys.stdin.readline()), **options) as loader:
    while True:
        for batch in loader:
            print(json.dumps([batch["id"].tolist(), loader.state_dict()]), flush=True)
            sys.stdin.readline()
"""


class Trainer:
    """Another process that trains, a step at a time."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._say(json.dumps(settings))

    def _say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def steps(self, count: int) -> list[tuple[list[int], dict[str, Any]]]:
        assert self.process.stdout
        found = []
        for _ in range(count):
            found.append(tuple(json.loads(self.process.stdout.readline())))
            self._say("on")
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def train() -> Iterator[Callable[[dict[str, Any]], Trainer]]:
    started: list[Trainer] = []

    def start(settings: dict[str, Any]) -> Trainer:
        started.append(Trainer(settings))
        return started[-1]

    yield start
    for trainer in started:
        trainer.kill()


def test_a_trainer_that_is_killed_leaves_no_workers_and_resumes_with_the_same_ids(
    config: Config, train: Callable[..., Trainer]
) -> None:
    settings = config(max_bytes="600kB")
    folder = complete(settings)
    trainer = train(settings)
    steps = trainer.steps(6)
    workers = [c["pid"] for c in waited(lambda: folder.read_claims("workers")).values()]
    trainer.kill()
    waited(lambda: not any(map(alive, workers)))
    with load(settings, engine="dataloader", workers=0) as loader:
        loader.load_state_dict(steps[2][1])
        iterator = iter(loader)
        again = [next(iterator)["id"].tolist() for _ in range(3)]
    assert again == [found for found, _state in steps[3:]]
    assert steps[2][1]["epoch"] == 0


def test_two_trainers_share_one_cache(config: Config, train: Callable[..., Trainer]) -> None:
    settings = config(max_bytes="600kB", low_water=0.7)
    folder, trainer = complete(settings), train(settings)
    mine: set[int] = set()
    theirs: set[int] = set()
    with load(settings, engine="dataloader", workers=0) as loader:
        end = time.monotonic() + 60
        while min(len(mine), len(theirs)) < 45:
            assert time.monotonic() < end
            mine |= set(ids(loader))
            theirs |= {i for found, _state in trainer.steps(8) for i in found}
            with folder.lock():
                assert folder.count_bytes() <= 600_000
        pids = {c["pid"] for c in folder.read_claims("workers").values()}
        trainer.kill()
        waited(lambda: sum(map(alive, pids)) == 1)
        assert ids(loader)


def test_ranks_agree_on_a_generation_though_it_grows_between_them(config: Config) -> None:
    settings = config(rate_limit="600kB")
    with (
        load(settings, shard={"rank": 0, "world_size": 2}) as one,
        load(settings, shard={"rank": 1, "world_size": 2}) as two,
    ):
        for _ in range(4):
            mine = ids(one)
            time.sleep(0.15)
            steps = len(two)
            theirs = list(two)
            assert steps == len(theirs)
            assert not set(mine) & set(ids(theirs))
            assert abs(len(mine) - len(ids(theirs))) <= 1
        grown = CacheFolder(CacheOptions(**settings["data"]["cache"]))
        assert len(list((grown.dir / "runs").glob("*.json"))) == 1
    assert not list((grown.dir / "runs").glob("*-*"))
    with load(settings, shard={"rank": 1, "world_size": 2}) as later:
        assert not list((grown.dir / "runs").glob("*.json"))
        later.sampler.set_epoch(3)
        assert len(ids(later)) * 2 + 1 >= len(mine) + len(ids(theirs))


def test_a_worker_that_is_killed_is_started_again(config: Config) -> None:
    settings = config(rate_limit="1MB")
    with load(settings) as loader:
        ids(loader)
        folder = CacheFolder(CacheOptions(**settings["data"]["cache"]))
        (pid,) = [c["pid"] for c in waited(lambda: folder.read_claims("workers")).values()]
        os.kill(pid, signal.SIGKILL)
        waited(lambda: not alive(pid))
        sizes = [len(ids(loader))]
        while sizes[-1] < 60:
            time.sleep(0.1)
            sizes.append(len(ids(loader)))
    assert not list((folder.dir / "workers").iterdir())


def test_a_mended_shard_is_read_anew(config: Config) -> None:
    from gpupipe.cache import listing, verify
    from gpupipe.cache.fill import Filler
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
        assert list(verify.remove_damaged_shards(folder, 60, lambda done, total: None)) == [name]
        assert not folder.shard_path(name).exists()
        filler = Filler(folder, listing.load(folder), Store(source.dataset, 0, 5.0), 0, False)
        assert verify.fetch_missing_shards(folder, filler) == {}
    with load(settings) as loader:
        assert len(ids(loader)) == 60


def test_states_of_another_cache_or_of_long_ago_are_refused(config: Config) -> None:
    settings = config(workers=0)
    folder = complete(settings)
    with load(settings) as loader:
        state = loader.state_dict()
        assert state["generation"] is None
        loader.load_state_dict(state)
        next(iter(loader))
        state = loader.state_dict()
        folder.commit_log.refresh()
        for generation in (0, 99, -1):
            with pytest.raises(
                gpupipe.StateError,
                match=f"the state is of generation {generation}, and the cache in .* has "
                f"{folder.commit_log.generation}:",
            ):
                loader.load_state_dict(state | {"generation": generation})
        lacking = {k: v for k, v in state.items() if k != "generation"}
        with pytest.raises(gpupipe.StateError, match="it lacks 'generation'"):
            loader.load_state_dict(lacking)
    with folder.lock():
        folder.commit_log.evict(["00000002"], "a test")
        folder.remove_leftovers()
    folder.table_path("00000002").unlink()
    with (
        load(settings) as loader,
        pytest.raises(
            gpupipe.StateError,
            match="1 shard of it were evicted too long ago to be made again, the first 00000002",
        ),
    ):
        loader.load_state_dict(state)


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
