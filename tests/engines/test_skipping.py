"""Broken samples under on_error: skip: left out alone, and their neighbours are not touched."""

import json
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe.sampling.sampler import Sampler
from helpers.corrupt_images import (
    AUGMENT,
    BAD,
    BAD_IDS,
    GOOD_IDS,
    KIND_OF,
    SLOTS,
    change,
    epoch,
    ids,
    infect,
    load,
    sample,
)


def test_the_set_is_what_its_description_says() -> None:
    assert len(GOOD_IDS) == 40
    assert set(KIND_OF.values()) == set(BAD), "every kind is in it"
    assert SLOTS[16:24] == "x" * 8, "a whole batch of 8"
    assert SLOTS[0] == SLOTS[-1] == "x"


@pytest.mark.parametrize("shuffle", [True, False], ids=["shuffled", "in order"])
@pytest.mark.parametrize(("batch_size", "prefetch"), [(1, 2), (3, 8), (8, 1), (64, 2)])
def test_every_good_sample_arrives_once_as_if_nothing_were_wrong(
    sick: Path,
    pictures: list[Image.Image],
    expected: list[tuple[list[int], dict[int, torch.Tensor]]],
    batch_size: int,
    prefetch: int,
    shuffle: bool,
) -> None:
    with load(
        sick,
        AUGMENT,
        batch_size=batch_size,
        prefetch=prefetch,
        shuffle=shuffle,
        on_error="skip",
        max_bad=0.5,
    ) as loader:
        infect(sick, pictures)
        for number, (delivered, images) in enumerate(expected):
            batches = epoch(loader)
            order = delivered if shuffle else sorted(delivered)
            assert ids(batches) == [i for i in order if i in GOOD_IDS], (
                "each once, in the order of the epoch"
            )
            assert all(len(batch["id"]) for batch in batches), "no batch without a sample"
            planned = [order[at : at + batch_size] for at in range(0, len(order), batch_size)]
            assert [b["id"].tolist() for b in batches] == [
                g for g in ([i for i in p if i in GOOD_IDS] for p in planned) if g
            ]
            for batch in batches:
                assert batch["label"].tolist() == [i // 20 for i in batch["id"].tolist()]
                for id, image in zip(batch["id"].tolist(), batch["image"], strict=True):
                    assert torch.equal(image, images[id]), (
                        f"sample {id} of epoch {number} differs from what it is in a batch "
                        "of its own"
                    )
            assert len(loader.engine.quarantine) == len(BAD_IDS)


def test_the_quarantine_lists_every_bad_sample_once(
    sick: Path, pictures: list[Image.Image], tmp_path: Path
) -> None:
    file = tmp_path / "new" / "bad.jsonl"
    with load(sick, batch_size=8, on_error="skip", max_bad=0.5, quarantine=file) as loader:
        infect(sick, pictures)
        assert not file.exists()
        epoch(loader)
        text = file.read_text()
        epoch(loader)
        assert file.read_text() == text, "not once more in the next epoch"
        assert str(loader.engine.quarantine.file) == str(file)
    records = [json.loads(line) for line in text.splitlines()]
    assert sorted(r["path"] for r in records) == [str(sample(sick, id)) for id in BAD_IDS]
    for record in records:
        assert set(record) == {"path", "reason", "time"}
        assert (
            abs(time.mktime(time.strptime(record["time"][:19], "%Y-%m-%dT%H:%M:%S")) - time.time())
            < 300
        )


def test_by_default_the_quarantine_lies_in_the_cache(sick: Path, cache: Path) -> None:
    with load(sick, on_error="skip", max_bad=0.5) as loader:
        sample(sick, 3).unlink()
        epoch(loader)
        assert str(loader.engine.quarantine.file) == str(
            cache / "quarantine" / f"{loader.index.fingerprint}.jsonl"
        )
        assert str(sample(sick, 3)) in loader.engine.quarantine.file.read_text()


def test_a_quarantine_that_cannot_be_written_is_an_error_and_no_silent_loss(
    sick: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with load(
        sick, on_error="skip", max_bad=0.5, quarantine=tmp_path / "file" / "bad.jsonl"
    ) as loader:
        sample(sick, 3).unlink()
        with pytest.raises(
            gpupipe.DataError,
            match=rf"{sample(sick, 3)}: no such file.* cannot be written \(File exists\): set "
            r"loader\.quarantine",
        ):
            epoch(loader)


def test_a_sample_that_breaks_between_epochs_is_skipped_from_then_on(sick: Path) -> None:
    with load(sick, batch_size=8, on_error="skip", max_bad=0.5) as loader:
        assert sorted(ids(epoch(loader))) == list(range(len(SLOTS)))
        change(loader)
        sample(sick, 20).write_bytes(b"")
        for _ in range(2):
            assert sorted(ids(epoch(loader))) == [n for n in range(len(SLOTS)) if n != 20]
        assert len(loader.engine.quarantine) == 1


def test_samples_that_are_repeated_to_fill_a_batch_are_listed_once(
    sick: Path, tmp_path: Path
) -> None:
    with load(
        sick,
        batch_size=64,
        last_batch="pad",
        shuffle=False,
        on_error="skip",
        max_bad=0.5,
        quarantine=tmp_path / "bad.jsonl",
    ) as loader:
        sample(sick, 1).unlink()
        assert ids(epoch(loader)) == [0, *range(2, len(SLOTS)), 0, 2]
        assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 1
        assert len(loader.engine.quarantine) == 1


def test_max_bad_stops_and_names_the_limit(
    sick: Path, pictures: list[Image.Image], tmp_path: Path
) -> None:
    file = tmp_path / "bad.jsonl"
    with load(sick, batch_size=8, on_error="skip", max_bad=0.05, quarantine=file) as loader:
        infect(sick, pictures)
        for _ in range(
            2
        ):  # an iteration that is begun again does not go on beyond the limit either
            with pytest.raises(
                gpupipe.TooManyBadError,
                match=r"4 of 61 samples cannot be read, more than loader\.max_bad=0\.05 allows "
                rf"\(3\.05\).*{sick}.*{file}",
            ):
                epoch(loader)
    assert len(file.read_text().splitlines()) == 4


def test_as_many_as_max_bad_allows_are_skipped(sick: Path) -> None:
    with load(sick, batch_size=8, on_error="skip", max_bad=2 / 61) as loader:
        sample(sick, 5).unlink()
        sample(sick, 6).unlink()
        assert len(ids(epoch(loader))) == 59


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_file_that_comes_back_in_time_is_no_error(sick: Path, on_error: str) -> None:
    """As on a network file system: the batch failed while it was prepared, and no sample fails when
    they are tried one by one.
    """
    with load(sick, batch_size=3, prefetch=6, shuffle=False, on_error=on_error) as loader:
        epoch(loader)
        change(loader)
        away = sample(sick, 7).rename(sick / "away")
        iterator = iter(loader)
        delivered = [next(iterator)]
        time.sleep(0.3)  # until the batch with sample 7 has been tried and has failed
        away.rename(sample(sick, 7))
        assert ids([*delivered, *iterator]) == list(range(len(SLOTS)))
        assert len(loader.engine.quarantine) == 0


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_nothing_left_is_an_error_whatever_max_bad_says(sick: Path, batch_size: int) -> None:
    with load(sick, batch_size=batch_size, on_error="skip", max_bad=1.0) as loader:
        for n in range(len(SLOTS)):
            sample(sick, n).write_bytes(b"")
        for _ in range(2):
            with pytest.raises(
                gpupipe.TooManyBadError,
                match="61 of 61 samples cannot be read, so nothing is left to deliver",
            ):
                epoch(loader)


def test_a_rank_that_would_lose_a_step_says_so(sick: Path) -> None:
    with load(
        sick,
        batch_size=2,
        shuffle=False,
        on_error="skip",
        max_bad=0.5,
        shard={"rank": 0, "world_size": 2},
    ) as loader:
        sample(sick, 4).unlink()
        sample(sick, 5).unlink()
        with pytest.raises(
            gpupipe.EngineError,
            match=r"this rank would have fewer steps than the others: make loader\.batch_size "
            r"larger",
        ):
            epoch(loader)


def test_a_step_that_the_next_epoch_would_lose_spoils_not_this_one(sick: Path) -> None:
    """Batches of the next epoch are prepared during this one."""

    def batches(seed: int) -> list[list[set[int]]]:
        sampler = Sampler(
            len(SLOTS), 2, shuffle=True, seed=seed, last_batch="partial", rank=0, world_size=2
        )
        return [[set(plan.ids.tolist()) for plan in sampler.begin()] for _ in range(2)]

    def fits(first: list[set[int]], second: list[set[int]]) -> bool:
        return second[0] == {4, 5} and all(batch - {4, 5} for batch in first)

    seed = next(s for s in range(100_000) if fits(*batches(s)))
    with load(
        sick,
        batch_size=2,
        seed=seed,
        on_error="skip",
        max_bad=0.5,
        shard={"rank": 0, "world_size": 2},
    ) as loader:
        sample(sick, 4).unlink()
        sample(sick, 5).unlink()
        assert set(ids(epoch(loader))) == set().union(*batches(seed)[0]) - {4, 5}
        with pytest.raises(gpupipe.EngineError, match="fewer steps"):
            epoch(loader)


def test_a_lost_step_behind_a_failure_is_not_forgotten(sick: Path) -> None:
    """A batch that is known to be lost is seen while one before it is in flight, and then that one
    fails.
    """

    def batches(seed: int, epoch: int) -> list[set[int]]:
        sampler = Sampler(
            len(SLOTS), 2, shuffle=True, seed=seed, last_batch="partial", rank=0, world_size=2
        )
        sampler.set_epoch(epoch)
        return [set(plan.ids.tolist()) for plan in sampler.begin()]

    seed = next(
        s
        for s in range(100_000)
        if batches(s, 1)[1] == {4, 5}
        and all(b - {4, 5} for b in batches(s, 0))
        and {4, 5} <= set().union(*batches(s, 0))
    )
    first = batches(seed, 1)[0]
    with load(
        sick,
        batch_size=2,
        seed=seed,
        prefetch=3,
        on_error="skip",
        max_bad=0.5,
        shard={"rank": 0, "world_size": 2},
    ) as loader:
        sample(sick, 4).unlink()
        sample(sick, 5).unlink()
        epoch(loader)
        change(loader)
        broken = min(first)
        sample(sick, broken).write_bytes(b"")
        iterator = iter(loader)
        assert set(next(iterator)["id"].tolist()) == first - {broken}
        with pytest.raises(gpupipe.EngineError, match="fewer steps"):
            next(iterator)


def test_an_epoch_of_skipped_samples_alone_ends_with_an_error(sick: Path) -> None:
    """The last sample, which is good, is dropped from every epoch; the others are bad."""
    with load(
        sick, batch_size=60, last_batch="drop", shuffle=False, on_error="skip", max_bad=0.99
    ) as loader:
        for n in range(60):
            sample(sick, n).write_bytes(b"")
        for _ in range(2):
            with pytest.raises(gpupipe.TooManyBadError, match="every sample of epoch"):
                epoch(loader)
