"""Samples that fail in the CPU engine cost only themselves, and are told as by other engines."""

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import gpupipe
from helpers.corrupt_images import BAD, GOOD_IDS, SLOTS, epoch, ids, infect, sample
from helpers.image_files import encoded
from helpers.loaders import loading

load = loading(engine="cpu", threads=2)
REASONS = {
    "damaged PNG": "cannot be decoded or transformed: PNG: ",
    "garbled JPEG": "cannot be decoded or transformed: ",
    "missing": "no such file or directory",
    "broken link": "no such file or directory",
    "folder": "is a directory",
}
"""Reasons in other words than DALI's."""


@pytest.mark.parametrize("kind", BAD)
def test_raise_names_the_sample_and_the_reason(
    few: Path, pictures: list[Image.Image], kind: str
) -> None:
    write, reason = BAD[kind]
    reason = REASONS.get(kind, reason.removeprefix("^").removesuffix("$"))
    with load(few, batch_size=2, shuffle=False) as loader:
        write(sample(few, 4), pictures[4])
        delivered: list[int] = []
        with pytest.raises(gpupipe.SampleError, match=reason) as caught:
            delivered.extend(i for batch in loader for i in batch["id"].tolist())
        assert delivered == [0, 1, 2, 3]
        assert caught.value.path == str(sample(few, 4))


def test_skip_leaves_out_the_bad_alone(sick: Path, pictures: list[Image.Image]) -> None:
    with load(sick, batch_size=8, on_error="skip", max_bad=0.5) as loader:
        infect(sick, pictures)
        for _ in range(2):
            assert sorted(ids(epoch(loader))) == GOOD_IDS
        assert len(loader.engine.quarantine) == len(SLOTS) - len(GOOD_IDS)


def test_what_is_left_of_a_batch_keeps_its_pixels(few: Path) -> None:
    with load(few, batch_size=6, shuffle=False) as loader:
        (whole,) = epoch(loader)
    sample(few, 2).write_bytes(b"no image")
    with load(few, batch_size=6, shuffle=False, on_error="skip", max_bad=0.5) as loader:
        (left,) = epoch(loader)
    assert left["id"].tolist() == [0, 1, 3, 4, 5]
    assert np.array_equal(left["image"], whole["image"][[0, 1, 3, 4, 5]])


def test_files_that_are_truncated_while_they_are_read_end_no_process(
    few: Path, pictures: list[Image.Image]
) -> None:
    """Each is cut and written whole again by another thread, all the time."""
    whole = encoded(pictures[4], "JPEG")
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            for n in (1, 4):
                os.truncate(sample(few, n), 100)
                sample(few, n).write_bytes(whole)

    with load(few, batch_size=3, on_error="skip", max_bad=0.9) as loader:
        thread = threading.Thread(target=disturb)
        thread.start()
        try:
            for _ in range(30):
                assert set(ids(epoch(loader))) >= {0, 2, 3, 5}
        finally:
            stop.set()
            thread.join()
