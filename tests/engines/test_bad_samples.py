"""Bad samples are listed once, and end the run if they are too many or may not be skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gpupipe
from gpupipe.engines.bad_samples import Quarantine
from helpers.image_files import encoded
from helpers.png_job import PICTURE, job_of


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
