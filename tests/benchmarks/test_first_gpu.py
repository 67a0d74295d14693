"""benchmarks/first_gpu.sh: every part runs on a CPU, on a few images, and what a part finds is
reported.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

FAKES = {
    "versions": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "doctor": "raise OSError('no such driver')",
    "probe": "import part\np = part.Part('probe', part.options('').parse_args())\np.check('all is "
    "well', False, 'it is not')\np.finish()",
    "tests": "import part\np = part.Part('tests', "
    "part.options('').parse_args())\np.headline('fine')\np.finish()",
    "decode": "import time; time.sleep(1000)",
    "streams": "",
}


def script(
    folder: Path, out: Path, *words: str, data: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """first_gpu.sh of `folder`, in a process that cannot see a GPU."""
    own = {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(data or out.parent)}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | own
    command = [
        "bash",
        str(folder / "first_gpu.sh"),
        *words[: words.index("OUT")],
        str(out),
        *words[words.index("OUT") + 1 :],
    ]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=800
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "parts", ["versions doctor probe", "tests", "decode", "streams", "training", "throughput"]
)
def test_every_part_runs_on_a_cpu(
    photos: Path, tmp_path: Path, benchmarks: Path, parts: str
) -> None:
    words = ["--device", "cpu", "--quick", "--photos", str(photos), "--within", "700"]
    done = script(benchmarks, tmp_path / "out", *words, "OUT", *parts.split())
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {part: (s["outcome"], s["failed"]) for part, s in summary.items()} == {
        part: ("ok", []) for part in parts.split()
    }, done.stdout
    assert done.returncode == 0
    for part in parts.split():
        found = json.loads((tmp_path / "out" / f"{part}.json").read_text())
        assert found["finished"]
        assert found["device"] == "cpu"
        assert found["figures"]
        assert found["headline"] in done.stdout
    if parts == "throughput":
        gpu = json.loads((tmp_path / "out" / "gpu.json").read_text())
        assert set(gpu["rounds"]) == {"lfw-affine", "imagenet_train"}
        assert [r["contestant"] for r in gpu["sweeps"]["lfw-affine"]["load"]][:2] == [
            "gpupipe@load=0",
            "gpupipe@load=0.25",
        ]
        assert gpu["data"]["imagenet_train"] == "windows of photographs, crops-100-500x375-q96"
        assert (
            gpu["sweeps"]["imagenet_train"]["huffman"][0]["contestant"]
            == "decode-only-fancy@load=0,huffman=1"
        )


def test_a_part_that_fails_does_not_stop_the_others(tmp_path: Path, benchmarks: Path) -> None:
    folder = tmp_path / "benchmarks"
    (folder / "first_gpu").mkdir(parents=True)
    for name in ("first_gpu.sh", "first_gpu/part.py", "first_gpu/summary.py", "harness.py"):
        shutil.copy(benchmarks / name, folder / name)
    for name, code in FAKES.items():
        (folder / "first_gpu" / f"{name}.py").write_text(code)
    done = script(folder, tmp_path / "out", "--within", "30", "OUT", *FAKES)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert {name: entry["outcome"] for name, entry in summary.items()} == {
        "versions": "crashed with SIGSEGV",
        "doctor": "failed with status 1",
        "probe": "checks failed",
        "tests": "ok",
        "decode": "timed out",
        "streams": "no time left",
    }
    assert "no such driver" in summary["doctor"]["log"]
    assert summary["probe"]["failed"] == ["all is well: it is not"]
    assert "FAILS all is well: it is not" in done.stdout
    assert (tmp_path / "out" / "summary.txt").read_text() in done.stdout
    assert done.returncode == 1


def test_an_unknown_part_and_option_are_refused(tmp_path: Path, benchmarks: Path) -> None:
    wrong = script(benchmarks, tmp_path / "out", "OUT", "decoed")
    assert wrong.returncode == 2
    assert "no part 'decoed'; there are: versions doctor probe" in wrong.stderr
    assert script(benchmarks, tmp_path / "out", "--fast", "OUT").returncode == 2
    assert not (tmp_path / "out").exists()


# --- what the parts find


def test_wrong_pixels_zeros_shapes_and_changes_are_found() -> None:
    from first_gpu import decode

    image = np.random.default_rng(0).integers(1, 256, (20, 30, 3), np.uint8)
    off_by_one = image ^ 1
    expected = [image] * 5
    first = [image, off_by_one, np.zeros_like(image), image[:10], image]
    second = [image, off_by_one, np.zeros_like(image), image[:10], off_by_one]
    tally = decode.Tally(["4:2:0", "4:2:0", "gray", "gray", "gray"])
    tally.add(list(map(decode.compared, first, expected, second)))
    found = tally.result()
    assert (
        found["zeros"],
        found["wrong_shape"],
        found["changed_in_second_run"],
        found["identical"],
    ) == (1, 1, 1, 2)
    assert found["worst_image"] == 2
    assert found["kinds"]["4:2:0"]["min"] == pytest.approx(48.13, abs=0.01), (
        "one level off is 10 log10(255^2) dB"
    )
    failed = [
        what for what, holds, _ in decode.judged({"hardware": found}, 5)["checks"] if not holds
    ]
    whats = ("shapes are right", "no image of zeros", "at least 30 dB", "two runs are the same")
    assert failed == [f"hardware: {what}" for what in whats]


def test_decoders_of_a_gpu_take_the_options_that_they_get() -> None:
    from first_gpu import decode
    from nvidia.dali import Pipeline, fn

    from gpupipe.engines.dali import ops
    from gpupipe.engines.dali.pending_ops import Decoding

    names = decode.decoders(argparse.Namespace(device="gpu"))
    assert list(names) == ["cpu", "CUDA", "hardware", "load 0.9"]
    for name, options in names.items():
        with Pipeline(batch_size=1, num_threads=1, device_id=None):
            node = ops.decode(
                fn.external_source(name="files"),
                "cpu" if name == "cpu" else "gpu",
                Decoding(exif=True),
                options,
            )
        assert node.device == ("cpu" if name == "cpu" else "gpu")


def test_a_cut_file_that_comes_through_and_a_good_one_that_is_blamed_are_found() -> None:
    from first_gpu import damage

    image = np.full((3, 4, 4), 100.0, np.float32)
    checks = damage._judged(
        "load 1", {"a": image}, {"a": image + 90, "b": image}, {"b", "cut-50"}, {"cut-50", "cut-99"}
    )
    assert [(what, holds) for what, holds, _ in checks] == [
        ("cut files are skipped and named, load 1", False),
        ("no good file is blamed, load 1", False),
        ("good files beside cut ones are right, load 1", False),
    ]
    assert "cut-99" in checks[0][2]


def test_the_mixture_has_every_kind(photos: Path, tmp_path: Path) -> None:
    from first_gpu import pictures
    from PIL import Image

    made = pictures.mixture(tmp_path, sorted(photos.glob("*/*.jpg"))[:5], 40)
    assert {kind for _, kind in made} == set(pictures.KINDS)
    for path, kind in made:
        with Image.open(path) as image:
            assert ("progressive" in image.info, image.mode) == (
                kind == "progressive",
                "L" if kind == "gray" else "RGB",
            )


def batches(*numbers: int) -> list[dict[str, torch.Tensor]]:
    return [{"image": torch.full((2, 3), float(n)), "label": torch.tensor([n, n])} for n in numbers]


def test_a_batch_that_changed_has_another_checksum() -> None:
    from first_gpu import streams

    calls: list[int] = []
    found, _ = streams.checksums(batches(1, 2, 3), 5, lambda: calls.append(1), wait=False)
    same, _ = streams.checksums(batches(1, 2, 3, 1, 2), 5, lambda: None, wait=True)
    other, _ = streams.checksums(batches(1, 2, 4), 5, lambda: None, wait=True)
    assert len(calls) == 5, "epochs follow one another"
    assert found == same
    assert [a == b for a, b in zip(found, other, strict=True)] == [True, True, False, True, True]


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.int64]
)
def test_a_checksum_sees_a_swap(dtype: torch.dtype) -> None:
    from first_gpu import streams

    field = torch.arange(12).reshape(3, 4).to(dtype)
    assert streams.checksum(field) != streams.checksum(field.flip(0))
    assert streams.checksum(field.t()) == streams.checksum(field.t().contiguous())


def test_a_checksum_waits_for_no_gpu() -> None:
    from first_gpu import streams
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        total = streams.checksum(torch.zeros(4, 3, 8, 8, device="cuda"))
    assert (total.device.type, total.dtype) == ("cuda", torch.int64)


def test_calls_that_wait_are_counted_by_thread() -> None:
    from first_gpu import training

    def call(name: str, thread: int, category: str = "cuda_runtime") -> dict[str, Any]:
        return {"ph": "X", "cat": category, "name": name, "tid": thread}

    events = [
        *[call("cudaStreamSynchronize", 7)] * 4,
        *[call("cudaEventSynchronize", 9)] * 2,
        *[call("cudaLaunchKernel", 7)] * 30,
        call("cudaStreamSynchronize", 7, "cpu_op"),
        {"ph": "M", "name": "process_name"},
    ]
    assert training.counted(events, 7, steps=2) == {
        "training": {"cudaStreamSynchronize": 2.0},
        "other threads": {"cudaEventSynchronize": 1.0},
        "events": 38,
        "runtime calls": 36,
    }


def test_waiting_is_what_the_loaders_steps_take_longer() -> None:
    from first_gpu import training

    kept = [{"step_seconds": 0.3}, {"step_seconds": 0.15}]
    assert training.waiting({"step_seconds": 0.2}, kept) == pytest.approx(0.25)
    assert training.waiting({"step_seconds": 0.1}, kept) == 0.0


# --- benchmarks/gpu.py


def rates(*numbers: float) -> list[dict[str, Any]]:
    return [{"images_per_second": n} for n in numbers]


def test_goals_are_against_the_better_hand_and_the_ceiling() -> None:
    import gpu

    rounds = {
        "gpupipe": rates(90, 100),
        "hand-written-fancy": rates(100, 100),
        "hand-written-region-fancy": rates(50, 60),
    }
    rounds |= {"decode-only-fancy": rates(100, 101), "late": rates(5)}
    found = gpu.judged({"lfw-affine": rounds, "imagenet_train": {}})
    assert [(g["goal"], round(g["value"], 3), g["holds"]) for g in found["goals"]] == [
        ("lfw-affine: gpupipe / hand-written-fancy", 0.95, False),
        ("lfw-affine: gpupipe / decode-only-fancy", 0.945, False),
    ]
    assert "late" not in found["ratios"]["lfw-affine"]


def test_what_the_budget_does_not_allow_is_left_out(
    photos: Path, tmp_path: Path, benchmarks: Path
) -> None:
    words = [
        "--device",
        "cpu",
        "--quick",
        "--budget",
        "0",
        "--photos",
        str(photos),
        "--data",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
    ]
    subprocess.run(
        [sys.executable, str(benchmarks / "gpu.py"), *words],
        check=True,
        capture_output=True,
        timeout=250,
    )
    found = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert found["rounds"] == {"lfw-affine": {}, "imagenet_train": {}}
    assert "round 1, lfw-affine: no time left" in found["left_out"]


def test_a_sampler_tells_the_mean_of_what_it_reads() -> None:
    import time

    import gpu_measuring

    counter = itertools.count()
    with gpu_measuring.Sampler(
        {"power_watts": lambda: float(next(counter) % 2), "jpeg": lambda: 0.25}, seconds=0.001
    ) as sampler:
        deadline = time.monotonic() + 60
        while (
            not 0.3 < sampler.means(0.0).get("power_watts", 0.0) < 0.7
            and time.monotonic() < deadline
        ):
            os.sched_yield()
    found = sampler.means(0.0)
    assert found["jpeg"] == 0.25
    assert 0.3 < found["power_watts"] < 0.7
    assert sampler.means(time.perf_counter() + 1) == {}
    with gpu_measuring.Sampler({}) as nothing:
        pass
    assert nothing.means(0.0) == {}


def test_what_a_process_printed_before_it_failed_counts(tmp_path: Path) -> None:
    import harness

    (tmp_path / "some.py").write_text(
        "import sys\nprint('{\"n\": 1}')\nprint('words')\nprint('{\"n\": 2}', "
        "flush=True)\nsys.exit('no memory')\n"
    )
    lines, why = harness.fresh_lines(str(tmp_path / "some.py"), limit=100.0)
    assert lines == [{"n": 1}, {"n": 2}]
    assert "status 1" in why
    assert "no memory" in why
    (tmp_path / "slow.py").write_text(
        "import time\nprint('{\"n\": 1}', flush=True)\ntime.sleep(1000)\n"
    )
    lines, why = harness.fresh_lines(str(tmp_path / "slow.py"), limit=10.0)
    assert lines == [{"n": 1}]
    assert "not done after 10 s" in why
