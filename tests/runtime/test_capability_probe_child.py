import os
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from gpupipe.runtime import capability_probe as probes
from gpupipe.runtime import capability_probe_child as child
from helpers.full_product import IS_FULL

ORIENTATION = 0x0112


def test_images_of_the_probe_are_of_the_kinds_that_it_says():
    from PIL import Image

    alone, alike, mixed = child._make_batches()
    assert (len(alone), len(alike), len(mixed)) == (1, 128, 132)
    kinds = set()
    for data in mixed:
        with Image.open(BytesIO(data.tobytes())) as image:
            kinds.add(
                (
                    image.size,
                    image.mode,
                    image.layer[0][1:3],
                    "progressive" in image.info,
                    image.getexif()[ORIENTATION],
                )
            )
    assert kinds == {
        ((640, 480), "RGB", (2, 2), False, 1),
        ((500, 375), "RGB", (1, 1), False, 1),
        ((250, 250), "RGB", (2, 1), False, 1),
        ((500, 333), "RGB", (2, 2), True, 1),
        ((500, 375), "RGB", (2, 2), False, 6),
        ((400, 300), "L", (1, 1), False, 1),
    }


def test_batches_are_large_enough_for_all_threads():
    """Up to 4 samples for each thread and one, DALI's decoder sets samples up on a single thread,
    which crashes less.
    """
    assert child._THREADS >= 16
    assert min(len(batch) for batch in child._make_batches()[1:]) > 4 * (child._THREADS + 1)


def test_every_kind_meets_every_window():
    seen = {(n % 6, tuple(map(tuple, child._window(n, (480, 640, 3))))) for n in range(132)}
    assert len(seen) == 24


def test_a_gpu_is_tried_with_each_share_of_its_hardware_decoder():
    assert child.hw_decoder_loads(0) == (0.0, 0.9, 1.0)
    assert child.hw_decoder_loads(None) == (None,)


@pytest.mark.parametrize("gray", [False, True])
@pytest.mark.parametrize("windows", [False, True])
def test_what_is_tried_on_a_gpu_is_what_dali_takes(gray, windows):
    """As nodes: a pipeline for a GPU cannot be built without one."""
    from nvidia.dali import Pipeline

    image = child._make_jpeg(300, 400)
    cut = [child._window(0, (300, 400))] if windows else None
    with Pipeline(batch_size=1, num_threads=1, device_id=None):
        for load in child.hw_decoder_loads(0):
            node = child.decoder_node("mixed", [image], load, gray, cut)
            assert node.device == "gpu"
            assert node.source.name.strip("_").rsplit("_", 1)[0] == (
                "ImageSlice" if windows else "Image"
            )


def test_gray_and_turned_images_are_decoded_as_in_a_loader():
    turned, gray = child._make_jpeg(375, 500, turned=6), child._make_jpeg(300, 400, gray=True)
    assert [i.shape for i in child._decode_images(None, [turned, gray], None)] == [
        (500, 375, 3),
        (300, 400, 3),
    ]
    assert [i.shape for i in child._decode_images(None, [turned, gray], None, True)] == [
        (500, 375, 1),
        (300, 400, 1),
    ]


@pytest.mark.parametrize("shift", [(0, 2), (2, 0), (8, 8)])
def test_a_part_from_the_wrong_place_is_refused(shift):
    (whole,) = child._decode_images(None, [child._make_jpeg(480, 640)], None)
    start, size = child._window(0, whole.shape)
    (right,) = child._decode_images(
        None, [child._make_jpeg(480, 640)], None, windows=[(start, size)]
    )
    child._check_windows([right], [whole])
    (wrong,) = child._decode_images(
        None,
        [child._make_jpeg(480, 640)],
        None,
        windows=[(start + np.array(shift, np.int32), size)],
    )
    with pytest.raises(ValueError, match="came out wrong"):
        child._check_windows([wrong], [whole])
    with pytest.raises(ValueError, match=r"by 255\.0 levels"):
        child._check_windows([right[:-1]], [whole])


def test_whole_images_of_the_probe_decode_as_in_pillow():
    from PIL import Image

    data = child._make_jpeg(250, 250, subsampling=1)
    (whole,) = child._decode_images(None, [data], None)
    with Image.open(BytesIO(data.tobytes())) as image:
        assert np.abs(whole.astype(int) - np.asarray(image)).max() <= 1


def test_the_core_of_a_message_of_dali():
    with pytest.raises(RuntimeError) as raised:
        child._decode_images(None, [np.frombuffer(b"no image" * 20, np.uint8)], None)
    assert child.extract_cause(str(raised.value)) == "nvImageCodec failure: '#4'"


def test_the_child_needs_no_gpupipe_around_it(tmp_path: Path):
    """A script may have found gpupipe through sys.path alone, or run in any folder.

    That it passes the last stage too: test_capability_probe.py.
    """
    copy = shutil.copy(child.__file__, tmp_path / "alone.py")
    stages = ["pipeline", "decode", "region"] if IS_FULL else ["pipeline", "decode"]
    completed = subprocess.run(
        [sys.executable, "-c", probes._START, str(copy), "decode", "cpu", *stages[2:]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert completed.stdout.split() == stages


def test_the_nvjpeg_of_dali_is_found():
    library = Path(child._find_nvjpeg())
    assert library.is_file()
    assert library.name.startswith("libnvjpeg.so")
    assert os.access(library, os.R_OK)
