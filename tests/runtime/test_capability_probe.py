import os
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from gpupipe.runtime import capability_probe as probes
from gpupipe.runtime.capability_probe import (
    ProbeOutcome,
    jpeg_engines,
    known_to_break,
    lacked_memory,
    probe,
    region_decode_survives,
    short,
    visible_device,
    why_it_ended,
)
from gpupipe.runtime.devices import gpu_count

ORIENTATION = 0x0112


def test_the_cpu_passes_every_stage():
    assert probe(None) == ProbeOutcome(True, True, True)


@pytest.mark.skipif(gpu_count() > 0, reason="there is a GPU")
def test_a_gpu_that_is_not_there_passes_none_and_says_why():
    outcome = probe(0)
    assert (outcome.pipeline, outcome.decode, outcome.region) == (False, False, False)
    assert "CUDA is not available" in outcome.reason
    assert not region_decode_survives(0)


@pytest.mark.skipif(gpu_count() > 0, reason="there is a GPU")
def test_jpeg_engines_are_unknown_without_a_gpu():
    engines = jpeg_engines(0)
    assert engines.number is None
    assert "nvJPEG status" in engines.reason


def test_images_of_the_probe_are_of_the_kinds_that_it_says():
    from PIL import Image

    alone, alike, mixed = probes._batches()
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
    assert probes._THREADS >= 16
    assert min(len(batch) for batch in probes._batches()[1:]) > 4 * (probes._THREADS + 1)


def test_every_kind_meets_every_window():
    seen = {(n % 6, tuple(map(tuple, probes._window(n, (480, 640, 3))))) for n in range(132)}
    assert len(seen) == 24


def test_a_gpu_is_tried_with_each_share_of_its_hardware_decoder():
    assert probes.loads(0) == (0.0, 0.9, 1.0)
    assert probes.loads(None) == (None,)


@pytest.mark.parametrize("gray", [False, True])
@pytest.mark.parametrize("windows", [False, True])
def test_what_is_tried_on_a_gpu_is_what_dali_takes(gray, windows):
    """As nodes: a pipeline for a GPU cannot be built without one."""
    from nvidia.dali import Pipeline

    image = probes._jpeg(300, 400)
    cut = [probes._window(0, (300, 400))] if windows else None
    with Pipeline(batch_size=1, num_threads=1, device_id=None):
        for load in probes.loads(0):
            node = probes.decoder("mixed", [image], load, gray, cut)
            assert node.device == "gpu"
            assert node.source.name.strip("_").rsplit("_", 1)[0] == (
                "ImageSlice" if windows else "Image"
            )


def test_gray_and_turned_images_are_decoded_as_in_a_loader():
    turned, gray = probes._jpeg(375, 500, turned=6), probes._jpeg(300, 400, gray=True)
    assert [i.shape for i in probes._decoded(None, [turned, gray], None)] == [
        (500, 375, 3),
        (300, 400, 3),
    ]
    assert [i.shape for i in probes._decoded(None, [turned, gray], None, True)] == [
        (500, 375, 1),
        (300, 400, 1),
    ]


@pytest.mark.parametrize("shift", [(0, 2), (2, 0), (8, 8)])
def test_a_part_from_the_wrong_place_is_refused(shift):
    (whole,) = probes._decoded(None, [probes._jpeg(480, 640)], None)
    start, size = probes._window(0, whole.shape)
    (right,) = probes._decoded(None, [probes._jpeg(480, 640)], None, windows=[(start, size)])
    probes._compare([right], [whole])
    (wrong,) = probes._decoded(
        None, [probes._jpeg(480, 640)], None, windows=[(start + np.array(shift, np.int32), size)]
    )
    with pytest.raises(ValueError, match="came out wrong"):
        probes._compare([wrong], [whole])
    with pytest.raises(ValueError, match=r"by 255\.0 levels"):
        probes._compare([right[:-1]], [whole])


def test_whole_images_of_the_probe_decode_as_in_pillow():
    from PIL import Image

    data = probes._jpeg(250, 250, subsampling=1)
    (whole,) = probes._decoded(None, [data], None)
    with Image.open(BytesIO(data.tobytes())) as image:
        assert np.abs(whole.astype(int) - np.asarray(image)).max() <= 1


# --- how a child ends


def test_a_real_crash_is_told_by_its_signal():
    done = subprocess.run(
        [sys.executable, "-c", "import os; os.abort()"], capture_output=True, check=False
    )
    assert why_it_ended(done.returncode, done.stderr.decode()) == "crashed with SIGABRT"


@pytest.mark.parametrize(
    ("status", "stderr", "reason"),
    [
        (0, "a warning\n", ""),
        (-11, "", "crashed with SIGSEGV"),
        (-63, "", "crashed with signal 63"),
        (1, "dlopen libcuda.so failed.\nRuntimeError: no\n\n", "RuntimeError: no"),
        (3, "", "exit status 3"),
    ],
)
def test_why_it_ended(status, stderr, reason):
    assert why_it_ended(status, stderr) == reason


def test_the_core_of_a_message_of_dali():
    with pytest.raises(RuntimeError) as raised:
        probes._decoded(None, [np.frombuffer(b"no image" * 20, np.uint8)], None)
    assert short(str(raised.value)) == "nvImageCodec failure: '#4'"


def test_a_child_that_raises_says_so_in_one_line():
    assert probes._child("no such task") == ("", "KeyError: 'no such task'", True)


def test_a_child_that_is_too_slow_has_said_nothing_for_good(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probes, "_SECONDS", 0.01)
    assert probes._child("decode", "cpu") == ("", "no answer within 0.01 s", False)


@pytest.mark.parametrize(
    "code",
    [
        "bytearray(1 << 62)",
        "import numpy; numpy.zeros(1 << 52)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_a_child_without_memory_has_said_nothing_for_good(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    reason = why_it_ended(done.returncode, done.stderr.decode())
    assert reason
    assert lacked_memory(done.returncode, reason)


@pytest.mark.parametrize(
    ("reason", "lacked"),
    [
        ("RuntimeError: CUDA runtime API error cudaErrorMemoryAllocation (2): out of memory", True),
        ("RuntimeError: Can't allocate 1073741824 bytes on device 0.", True),
        ("RuntimeError: nvImageCodec failure: '#5'", True),
        ("RuntimeError: nvImageCodec failure: '#8'", False),
        ("ValueError: a part of an image came out wrong, by 255.0 levels on average", False),
        ("crashed with SIGSEGV", False),
    ],
)
def test_lack_of_memory_by_what_is_said(reason, lacked):
    assert lacked_memory(1, reason) is lacked


@pytest.mark.parametrize(
    ("version", "broken"),
    [
        ("0.9.0", True),
        ("0.9.0.20", True),
        ("0.9.0.1859", True),
        ("0.9.1", False),
        ("0.8.0.1422", False),
        ("0.10.0", False),
        (None, False),
    ],
)
def test_a_codec_that_is_known_to_break(version, broken):
    reason = known_to_break(version)
    assert bool(reason) is broken
    assert version is None or (version in reason) is broken


def test_a_child_needs_no_gpupipe_around_it(tmp_path: Path):
    """A script may have found gpupipe through sys.path alone, or run in any folder."""
    copy = shutil.copy(probes.__file__, tmp_path / "alone.py")
    code = f"import runpy; print(runpy.run_path({str(copy)!r})['probe'](None))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert (
        done.stdout.strip()
        == "ProbeOutcome(pipeline=True, decode=True, region=True, reason='', conclusive=True)"
    )


@pytest.mark.parametrize(
    ("setting", "device", "visible"),
    [
        (None, 0, "0"),
        (None, 3, "3"),
        ("", 0, "0"),
        ("2,5", 1, "5"),
        ("GPU-ab, GPU-cd", 1, "GPU-cd"),
        ("2", 1, "1"),
    ],
)
def test_the_one_gpu_that_a_child_sees(setting, device, visible):
    assert visible_device(setting, device) == visible


def test_the_nvjpeg_of_dali_is_found():
    library = Path(probes._library())
    assert library.is_file()
    assert library.name.startswith("libnvjpeg.so")
    assert os.access(library, os.R_OK)
