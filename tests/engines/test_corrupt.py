"""Broken samples: named under on_error: raise, left out alone under on_error: skip, and their
neighbours are not touched.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from image_files import encoded
from loaders import loading
from PIL import Image

import gpupipe
from gpupipe.dataset.columns import FileColumn
from gpupipe.dataset.strings import StringArray
from gpupipe.engines.bad_samples import describe_damage
from gpupipe.sampling.sampler import Sampler

SIDE = 96
AUGMENT = [
    "decode",
    {"random_affine": {"degrees": 20, "scale": [0.8, 1.2], "interpolation": "bilinear"}},
    "random_horizontal_flip",
]


def shares(form: str, *percents: int) -> dict[str, Callable[[Path, Image.Image], None]]:
    def cut(percent: int) -> Callable[[Path, Image.Image], None]:
        def write(path: Path, image: Image.Image) -> None:
            data = encoded(image, form)
            path.write_bytes(data[: len(data) * percent // 100])

        return write

    return {f"{form} cut at {percent} %": cut(percent) for percent in percents}


def holds(data: bytes) -> Callable[[Path, Image.Image], None]:
    return lambda path, image: path.write_bytes(data) and None


def to_a_folder(path: Path, image: Image.Image) -> None:
    path.unlink()
    path.mkdir()


def to_a_broken_link(path: Path, image: Image.Image) -> None:
    path.unlink()
    path.symlink_to("nowhere.jpg")


def damaged_png(path: Path, image: Image.Image) -> None:
    data = bytearray(encoded(image, "PNG"))
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def garbled_jpeg(path: Path, image: Image.Image) -> None:
    """A progressive JPEG with a second start of frame in the middle of its data."""
    data = encoded(image, "JPEG", progressive=True)
    middle = len(data) // 2
    path.write_bytes(data[:middle] + b"\xff\xc2\xff\xd8" * 20 + data[middle + 80 :])


CUT_OFF = r"a {} that was cut off: its end is missing \([\d,]+ bytes are there\)"
BAD: dict[str, tuple[Callable[[Path, Image.Image], Any], str]] = {
    **{name: (write, CUT_OFF.format("JPEG")) for name, write in shares("JPEG", 10, 50, 90).items()},
    **{name: (write, CUT_OFF.format("PNG")) for name, write in shares("PNG", 10, 90).items()},
    **{name: (write, CUT_OFF.format("WebP")) for name, write in shares("WEBP", 50).items()},
    **{name: (write, CUT_OFF.format("BMP")) for name, write in shares("BMP", 50).items()},
    **{
        name: (write, CUT_OFF.format("JPEG 2000")) for name, write in shares("JPEG2000", 50).items()
    },
    **{
        name: (write, "image file is truncated")
        for name, write in (shares("TIFF", 50) | shares("PPM", 50)).items()
    },
    "damaged PNG": (damaged_png, "its data are damaged"),
    "garbled JPEG": (garbled_jpeg, "its data are damaged"),
    "empty": (holds(b""), "^the file is empty$"),
    "one byte": (holds(b"\xff"), r"not an image in a known format \(it begins with b'\\xff'\)"),
    "missing": (lambda path, image: path.unlink(), "^no such file or directory$"),
    "broken link": (to_a_broken_link, "^no such file or directory$"),
    "folder": (to_a_folder, "^is a directory$"),
    "text": (
        holds(b"hello world\n" * 50),
        r"not an image in a known format \(it begins with b'hello world",
    ),
    "HTML": (
        holds(b"<!DOCTYPE html><html>404</html>"),
        "not an image in a known format .*DOCTYPE html",
    ),
    "PDF": (
        lambda path, image: path.write_bytes(encoded(image, "PDF")),
        "not an image in a known format .*%PDF-",
    ),
    "zeros": (holds(bytes(5000)), r"not an image in a known format \(it begins with b'\\x00"),
}
"""By name: what makes a bad file of a good one, and the reason that gpupipe must give (a regular
expression).
"""

SLOTS = "x.....xx......xxxxxxxxxxxxxxxx....................x.........x"
"""One letter a sample, x a bad one: in the first, the middle and the last batch, several in one,
whole batches of them; 40 are good.
"""


@pytest.fixture(scope="module")
def pictures(faces: Path) -> list[Image.Image]:
    return [
        Image.open(p).convert("RGB").crop((70, 70, 70 + SIDE, 70 + SIDE))
        for p in sorted(faces.glob("*/*.jpg"))
    ]


@pytest.fixture(scope="module")
def healthy(pictures: list[Image.Image], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same paths as `sick`, with nothing wrong: so the ids, and with them the draws, are the
    same.
    """
    root = tmp_path_factory.mktemp("healthy")
    for n in range(len(SLOTS)):
        path = sample(root, n)
        path.parent.mkdir(exist_ok=True)
        pictures[n % len(pictures)].save(path, quality=85)
    return root


@pytest.fixture
def sick(healthy: Path, pictures: list[Image.Image], tmp_path: Path) -> Path:
    """`healthy` with every kind of bad file where SLOTS says x.

    The index is built by those who load it, so the files change `after`.
    """
    return shutil.copytree(healthy, tmp_path / "sick")


def sample(root: Path, n: int) -> Path:
    return root / f"class_{n // 20}" / f"{n:03}.jpg"


BAD_IDS = [n for n, letter in enumerate(SLOTS) if letter == "x"]
GOOD_IDS = [n for n, letter in enumerate(SLOTS) if letter == "."]
KIND_OF = {id: list(BAD)[i % len(BAD)] for i, id in enumerate(BAD_IDS)}


def infect(root: Path, pictures: list[Image.Image]) -> None:
    for id, kind in KIND_OF.items():
        BAD[kind][0](sample(root, id), pictures[id % len(pictures)])


load = loading(threads=2)


def epoch(loader: gpupipe.Loader) -> list[dict[str, torch.Tensor]]:
    return list(loader)


def change(loader: gpupipe.Loader) -> None:
    """To be called before files are changed: batches of the next epoch are in flight already, and
    are dropped.
    """
    loader.load_state_dict(loader.state_dict())


def ids(batches: list[dict[str, torch.Tensor]]) -> list[int]:
    return [i for batch in batches for i in batch["id"].tolist()]


@pytest.fixture(scope="module")
def expected(healthy: Path) -> list[tuple[list[int], dict[int, torch.Tensor]]]:
    """Two epochs without an error, in batches of one: the order of the ids, and each image by its
    id.
    """
    with load(healthy, AUGMENT, batch_size=1, threads=1) as loader:
        epochs = [epoch(loader) for _ in range(2)]
    return [(ids(batches), {int(b["id"]): b["image"][0] for b in batches}) for batches in epochs]


def test_the_set_is_what_its_description_says() -> None:
    assert len(GOOD_IDS) == 40
    assert set(KIND_OF.values()) == set(BAD), "every kind is in it"
    assert SLOTS[16:24] == "x" * 8, "a whole batch of 8"
    assert SLOTS[0] == SLOTS[-1] == "x"


# --- skip


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
            assert loader.engine.skipped == len(BAD_IDS)


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
        assert loader.engine.quarantine_file == str(file)
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
        assert loader.engine.quarantine_file == str(
            cache / "quarantine" / f"{loader.index.fingerprint}.jsonl"
        )
        assert str(sample(sick, 3)) in Path(loader.engine.quarantine_file).read_text()


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
        assert loader.engine.skipped == 1


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
        assert loader.engine.skipped == 1


# --- too many


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
        assert loader.engine.skipped == 0


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


# --- raise


@pytest.fixture
def few(pictures: list[Image.Image], tmp_path: Path) -> Path:
    """Six good images."""
    for n in range(6):
        sample(tmp_path, n).parent.mkdir(exist_ok=True)
        pictures[n].save(sample(tmp_path, n), quality=85)
    return tmp_path


@pytest.mark.parametrize("kind", BAD)
def test_raise_names_the_sample_and_the_reason(
    few: Path, pictures: list[Image.Image], kind: str, cache: Path
) -> None:
    write, reason = BAD[kind]
    bad = sample(few, 4)
    with load(few, batch_size=2, shuffle=False) as loader:
        write(bad, pictures[4])
        for _ in range(2):
            delivered: list[int] = []
            with pytest.raises(
                gpupipe.SampleError, match=reason.removeprefix("^").removesuffix("$")
            ) as caught:
                delivered.extend(i for batch in loader for i in batch["id"].tolist())
            assert caught.value.path == str(bad)
            assert str(caught.value).startswith(f"{bad}: ")
            assert "set loader.on_error=skip" in str(caught.value)
            assert "\n" not in str(caught.value)
        mend(bad, pictures[4])
        assert ids(epoch(loader)) == [0, 1, 2, 3, 4, 5], "the loader can be used again"
    assert loader.engine.skipped == 0
    assert not (cache / "quarantine").exists()


@pytest.mark.parametrize("kind", BAD)
def test_skip_writes_the_same_reason(
    few: Path, pictures: list[Image.Image], kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write, reason = BAD[kind]
    file = tmp_path_factory.mktemp("quarantine") / "bad.jsonl"
    with load(few, batch_size=4, on_error="skip", max_bad=0.5, quarantine=file) as loader:
        write(sample(few, 4), pictures[4])
        assert sorted(ids(epoch(loader))) == [0, 1, 2, 3, 5]
    (record,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert re.search(reason, record["reason"]), record["reason"]


def mend(path: Path, image: Image.Image) -> None:
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    image.save(path, quality=85)


def test_batches_before_the_bad_one_arrive_first(few: Path) -> None:
    with load(few, batch_size=2, shuffle=False, prefetch=3) as loader:
        sample(few, 5).write_bytes(b"")
        iterator = iter(loader)
        assert next(iterator)["id"].tolist() == [0, 1]
        assert next(iterator)["id"].tolist() == [2, 3]
        with pytest.raises(gpupipe.SampleError):
            next(iterator)


def test_the_first_bad_sample_of_a_batch_is_named(few: Path) -> None:
    with load(few, batch_size=6, shuffle=False) as loader:
        for n in (2, 4):
            sample(few, n).write_bytes(b"")
        with pytest.raises(gpupipe.SampleError) as caught:
            epoch(loader)
    assert caught.value.path == str(sample(few, 2))


def test_a_good_image_that_the_pipeline_cannot_take_has_dalis_reason(
    few: Path, pictures: list[Image.Image]
) -> None:
    """The bytes behind its end are no crime, and so not named as the cause."""
    sample(few, 3).write_bytes(encoded(pictures[3].crop((0, 0, 40, 40)), "JPEG") + bytes(500))
    with (
        load(few, ["decode", {"random_crop": {"size": 64}}], batch_size=6) as loader,
        pytest.raises(gpupipe.SampleError) as caught,
    ):
        epoch(loader)
    assert caught.value.path == str(sample(few, 3))
    assert caught.value.reason.startswith(
        "cannot be decoded or transformed: the window of 64x64 pixels at ["
    )


# --- what is not an error


def test_bytes_behind_the_end_are_no_harm(few: Path, pictures: list[Image.Image]) -> None:
    with load(few, batch_size=6, shuffle=False) as loader:
        before = epoch(loader)[0]["image"]
        change(loader)
        with sample(few, 3).open("ab") as f:
            f.write(bytes(500))
        column = FileColumn("/", StringArray.from_strings([str(sample(few, 3))]))
        assert describe_damage(column, 0), "it looks cut off, and still it is delivered"
        assert torch.equal(epoch(loader)[0]["image"], before)


def test_a_jpeg_that_lacks_only_its_end_marker_is_delivered_right_or_refused(
    few: Path, pictures: list[Image.Image]
) -> None:
    """Which of the two is up to how far DALI's decoder reads ahead."""
    with load(few, batch_size=6, shuffle=False, on_error="skip", max_bad=0.5) as loader:
        before = epoch(loader)[0]["image"]
        change(loader)
        sample(few, 3).write_bytes(sample(few, 3).read_bytes()[:-2])
        batch = epoch(loader)[0]
        assert loader.engine.skipped == 6 - len(batch["id"])
        assert torch.equal(batch["image"], before[batch["id"]])


def test_a_flipped_byte_is_delivered_as_garbage(few: Path, pictures: list[Image.Image]) -> None:
    """JPEG has no checksum: what decodes is delivered.

    Documented, so that nobody relies on it being noticed.
    """
    with load(few, batch_size=6, shuffle=False) as loader:
        before = epoch(loader)[0]["image"]
        change(loader)
        data = bytearray(sample(few, 3).read_bytes())
        data[len(data) // 2] ^= 0x55
        sample(few, 3).write_bytes(data)
        after = epoch(loader)[0]["image"]
    assert not torch.equal(after[3], before[3])
    others = [0, 1, 2, 4, 5]
    assert torch.equal(after[others], before[others])


def test_a_file_cut_off_below_the_window_that_is_decoded_is_delivered_right(
    few: Path, pictures: list[Image.Image]
) -> None:
    """Only the window is decoded, so whether a file that was cut off is noticed can depend on the
    draw. The pixels are right.
    """
    with load(
        few,
        ["decode", {"resize": {"size": 48}}, {"center_crop": {"size": 10}}],
        batch_size=6,
        shuffle=False,
    ) as loader:
        before = epoch(loader)[0]["image"]
        change(loader)
        data = sample(few, 3).read_bytes()
        sample(few, 3).write_bytes(data[: len(data) * 95 // 100])
        assert torch.equal(epoch(loader)[0]["image"], before)
    with (
        load(few, batch_size=6, shuffle=False) as loader,
        pytest.raises(gpupipe.SampleError, match="cut off"),
    ):
        epoch(loader)


# --- sizes


@pytest.fixture
def unequal(few: Path, pictures: list[Image.Image]) -> Path:
    pictures[4].crop((0, 0, 50, 70)).save(sample(few, 4), quality=85)
    return few


def test_images_that_differ_in_size_are_named_with_their_sizes_and_a_remedy(unequal: Path) -> None:
    with load(unequal, batch_size=6, shuffle=False) as loader:
        for _ in range(2):
            with pytest.raises(gpupipe.ShapeError) as caught:
                epoch(loader)
        said = str(caught.value)
        assert f"{sample(unequal, 0)} is 96x96" in said
        assert f"{sample(unequal, 4)} is 70x50" in said
        assert "resize" in said
        assert "center_crop" in said


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_difference_in_size_is_never_skipped(unequal: Path, on_error: str) -> None:
    with load(unequal, batch_size=3, shuffle=False, on_error=on_error) as loader:
        iterator = iter(loader)
        assert next(iterator)["id"].tolist() == [0, 1, 2]
        with pytest.raises(gpupipe.ShapeError):
            next(iterator)


def test_a_difference_in_size_beside_a_bad_sample(unequal: Path) -> None:
    with load(unequal, batch_size=6, shuffle=False, on_error="skip", max_bad=0.5) as loader:
        sample(unequal, 1).unlink()
        with pytest.raises(gpupipe.ShapeError, match=f"{sample(unequal, 4)} is 70x50"):
            epoch(loader)
        assert loader.engine.skipped == 1


def test_batches_of_equal_size_may_differ_from_each_other(unequal: Path) -> None:
    with load(unequal, batch_size=1, shuffle=False) as loader:
        assert [tuple(b["image"].shape[2:]) for b in loader] == [(96, 96)] * 4 + [
            (70, 50),
            (96, 96),
        ]


def test_a_step_that_makes_sizes_equal_is_the_remedy(unequal: Path) -> None:
    with load(unequal, ["decode", {"resize": {"size": [64, 48]}}], batch_size=6) as loader:
        assert [tuple(b["image"].shape) for b in loader] == [(6, 3, 64, 48)]
