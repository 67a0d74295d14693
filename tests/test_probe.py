import os
import shutil
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from gpupipe import probe as probes
from gpupipe.devices import gpu_count
from gpupipe.probe import Outcome, jpeg_engines, probe, region_decode_survives, short, visible_device, why_it_ended


def test_the_cpu_passes_every_stage():
    assert probe(None) == Outcome(True, True, True)


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
    assert (len(alone), len(alike), len(mixed)) == (1, 16, 16)
    kinds = set()
    for data in mixed:
        with Image.open(BytesIO(data.tobytes())) as image:
            kinds.add((image.size, image.layer[0][1:3], "progressive" in image.info))
    assert kinds == {((640, 480), (2, 2), False), ((500, 375), (1, 1), False), ((250, 250), (2, 1), False), ((500, 333), (2, 2), True)}


def test_every_kind_meets_every_window():
    seen = {(n % 4, tuple(map(tuple, probes._window(n, (480, 640, 3))))) for n in range(16)}
    assert len(seen) == 16


@pytest.mark.parametrize("shift", [(0, 2), (2, 0), (8, 8)])
def test_a_part_from_the_wrong_place_is_refused(shift):
    (whole,) = probes._decoded(None, [probes._jpeg(480, 640)])
    start, size = probes._window(0, whole.shape)
    (right,) = probes._decoded(None, [probes._jpeg(480, 640)], [(start, size)])
    probes._compare([right], [whole])
    (wrong,) = probes._decoded(None, [probes._jpeg(480, 640)], [(start + np.array(shift, np.int32), size)])
    with pytest.raises(ValueError, match="came out wrong"):
        probes._compare([wrong], [whole])
    with pytest.raises(ValueError, match=r"by 255\.0 levels"):
        probes._compare([right[:-1]], [whole])


def test_whole_images_of_the_probe_decode_as_in_pillow():
    from PIL import Image

    data = probes._jpeg(250, 250, subsampling=1)
    (whole,) = probes._decoded(None, [data])
    with Image.open(BytesIO(data.tobytes())) as image:
        assert np.abs(whole.astype(int) - np.asarray(image)).max() <= 1


# --- how a child ends


def test_a_real_crash_is_told_by_its_signal():
    done = subprocess.run([sys.executable, "-c", "import os; os.abort()"], capture_output=True, check=False)
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
        probes._decoded(None, [np.frombuffer(b"no image" * 20, np.uint8)])
    assert short(str(raised.value)) == "nvImageCodec failure: '#4'"


def test_a_child_that_raises_says_so_in_one_line():
    said, reason = probes._child("no such task")
    assert said == ""
    assert reason == "KeyError: 'no such task'"


def test_a_child_needs_no_gpupipe_around_it(tmp_path: Path):
    """A script may have found gpupipe through sys.path alone, or run in any folder."""
    copy = shutil.copy(probes.__file__, tmp_path / "alone.py")
    code = f"import runpy; print(runpy.run_path({str(copy)!r})['probe'](None))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.strip() == "Outcome(pipeline=True, decode=True, region=True, reason='')"


@pytest.mark.parametrize(
    ("setting", "device", "visible"),
    [(None, 0, "0"), (None, 3, "3"), ("", 0, "0"), ("2,5", 1, "5"), ("GPU-ab, GPU-cd", 1, "GPU-cd"), ("2", 1, "1")],
)
def test_the_one_gpu_that_a_child_sees(setting, device, visible):
    assert visible_device(setting, device) == visible


def test_the_nvjpeg_of_dali_is_found():
    library = Path(probes._library())
    assert library.is_file()
    assert library.name.startswith("libnvjpeg.so")
    assert os.access(library, os.R_OK)
