"""Bad samples are listed once, and end the run if they are too many or may not be skipped. The
engine's message, and the first and last bytes of the file, say what is wrong with a sample.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import gpupipe
from gpupipe.engines.bad_samples import (
    Quarantine,
    describe_damage,
    explain_image_failure,
    explain_sample_failure,
    find_cause,
    find_suspects,
)
from helpers.coco_files import document, write
from helpers.image_files import encoded
from helpers.png_job import PICTURE, job_of

FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "WEBP")


def test_bad_samples_are_listed_once_until_they_are_too_many(tmp_path: Path) -> None:
    files = {f"{n}.png": encoded(PICTURE, "PNG") for n in range(4)}
    quarantine = Quarantine(job_of(tmp_path, files, on_error="skip", max_bad=0.5))
    for id in (1, 1, 2):
        quarantine.add(id, "it is bad")
    lines = [json.loads(line) for line in quarantine.file.read_text().splitlines()]
    assert [Path(line["path"]).name for line in lines] == ["1.png", "2.png"]
    assert dict(quarantine.reasons) == {1: "it is bad", 2: "it is bad"}
    with pytest.raises(
        gpupipe.TooManyBadError, match=r"3 of 4 samples cannot be read.*max_bad=0\.5"
    ):
        quarantine.add(3, "it is bad too")


def test_on_error_raise_lists_nothing(tmp_path: Path) -> None:
    quarantine = Quarantine(job_of(tmp_path, {"0.png": encoded(PICTURE, "PNG")}))
    with pytest.raises(gpupipe.SampleError, match="it is bad"):
        quarantine.add(0, "it is bad")
    assert len(quarantine) == 0
    assert not quarantine.file.exists()


def test_the_bytes_of_a_file_say_what_is_wrong_with_it(tmp_path: Path) -> None:
    whole = {f"a_{kind}.png": encoded(PICTURE, kind) for kind in FORMATS}
    cut = {f"b_{kind}.png": encoded(PICTURE, kind)[:-20] for kind in FORMATS}
    job = job_of(tmp_path, whole | cut | {"c.png": b"", "d.png": b"hello world"})
    column = job.index.columns[job.index.main]
    said = [describe_damage(column, row) for row in range(len(job.index))]
    assert said[:5] == [""] * 5
    assert all("was cut off: its end is missing" in words for words in said[5:10])
    assert said[10] == "the file is empty"
    assert "not an image in a known format (it begins with b'hello world')" in said[11]
    suspects = find_suspects(job.index, np.arange(len(job.index)))
    assert suspects == [bool(words) for words in said]
    Path(job.index.location(0)).unlink()
    assert "no such file" in describe_damage(column, 0).lower()


def test_a_failure_is_explained_by_the_message_or_by_the_file(tmp_path: Path) -> None:
    job = job_of(tmp_path, {"a.png": encoded(PICTURE, "PNG"), "b.png": b""})
    column = job.index.columns[job.index.main]
    said = "Failed to decode sample #0"
    assert f"of a kind that the decoder does not know ({said})" in explain_image_failure(
        column, 0, said
    )
    assert explain_image_failure(column, 1, said) == "the file is empty"
    assert (
        explain_image_failure(column, 0, "too wide") == "cannot be decoded or transformed: too wide"
    )
    assert explain_sample_failure(job.index, 1, "too wide").endswith("too wide (the file is empty)")


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (
            "Critical error in pipeline:\nError in CPU operator `x`\nencountered:\n\nError: bad",
            "bad",
        ),
        ("decode, /src/image.cpp:71, not a JPEG file", "not a JPEG file"),
        ("\n  plain words\nmore", "plain words"),
        ("Critical error in pipeline:\n", "no reason given"),
    ],
)
def test_the_cause_is_the_first_line_that_states_one(message: str, cause: str) -> None:
    assert find_cause(message) == cause


@pytest.mark.parametrize("engine", ["cpu", "dali", "dataloader"])
def test_a_sample_with_wrong_annotations_is_a_broken_sample(engine: str, tmp_path: Path) -> None:
    content = document(12)
    content["annotations"][9]["bbox"][2] = 0
    broken = content["annotations"][9]["image_id"]
    file = write(tmp_path, content)

    def loader(on_error: str) -> gpupipe.Loader:
        return gpupipe.load(
            {
                "data": {"source": "coco", "root": f"{tmp_path}/images", "annotations": str(file)},
                "pipeline": ["decode", {"resize": {"size": [16, 16]}}],
                "loader": {
                    "engine": engine,
                    "device": "cpu",
                    "batch_size": 2,
                    "shuffle": False,
                    "on_error": on_error,
                    "max_bad": 0.2,
                    "quarantine": str(tmp_path / "bad.jsonl"),
                },
            }
        )

    delivered = []
    with (
        loader("raise") as refusing,
        pytest.raises(gpupipe.SampleError, match=r"004\.jpg: .*annotations\[9\]: .* has no area"),
    ):
        for batch in refusing:
            delivered += batch["image_id"].tolist()
    assert delivered == [100, 101, 102, 103]  # the broken sample is the fifth
    with loader("skip") as skipping:
        delivered = [number for batch in skipping for number in batch["image_id"].tolist()]
    every = [image["id"] for image in content["images"]]
    assert delivered == [number for number in every if number != broken]
    (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert "annotations[9]" in json.loads(line)["reason"]
