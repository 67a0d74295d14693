"""benchmarks/first_gpu.sh: every part runs on a CPU, on a few images, and what a part finds is
reported.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from helpers.forked_python import executable
from helpers.full_product import IS_FULL

MAX_FILES = 8
"""That a machine may give back after a call."""
SHORT_PARTS = ["streams"]
LONG_PARTS = [
    "versions doctor probe decode",
    "law_1 broken_files tests",
    "rates engines",
    "training",
    "throughput",
]
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
    own = {"PYTHON": executable(), "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(data or out.parent)}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | own
    command = [
        "bash",
        str(folder / "first_gpu.sh"),
        *words[: words.index("OUT")],
        str(out),
        *words[words.index("OUT") + 1 :],
    ]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=1000
    )


@pytest.mark.timeout(1100)
@pytest.mark.parametrize("parts", SHORT_PARTS + (LONG_PARTS if IS_FULL else []))
def test_every_part_runs_on_a_cpu(
    photos: Path, tmp_path: Path, benchmarks: Path, parts: str
) -> None:
    words = ["--device", "cpu", "--quick", "--photos", str(photos), "--within", "900"]
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
    assert not list((tmp_path / "out").glob("*.log"))
    if parts == "throughput":
        gpu = json.loads((tmp_path / "out" / "gpu.json").read_text())
        assert set(gpu["rounds"]) == {"lfw-affine", "imagenet_train"}
        assert [r["contestant"] for r in gpu["sweeps"]["lfw-affine"]["load"]][:2] == [
            "gpupipe@load=0",
            "gpupipe@load=0.25",
        ]
        assert gpu["data"]["imagenet_train"] == "windows of photographs, crops-30-500x375-q96"
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
    *ends, slow, late = FAKES
    script(folder, tmp_path / "out", "OUT", *ends)
    done = script(folder, tmp_path / "out", "--within", "18", "OUT", slow, late)
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
    crashed = json.loads((tmp_path / "out" / "doctor.json").read_text())
    assert "no such driver" in crashed["log"]
    assert not crashed["finished"]
    assert len(list((tmp_path / "out").iterdir())) <= MAX_FILES
    assert done.returncode == 1


def test_each_call_takes_nine_minutes_and_leaves_few_files(benchmarks: Path) -> None:
    text = (benchmarks / "first_gpu.sh").read_text()
    limits = {name: int(n) for name, n in re.findall(r"\[(\w+)\]=(\d+)", text)}
    calls = [parts.split() for parts in re.findall(r'\[\d\]="(.*?)"', text)]
    assert sorted(limits) == sorted(part for parts in calls for part in parts)
    for parts in calls:
        assert sum(limits[part] for part in parts) <= 9 * 60 - 5
        # gpu.json of throughput, summary.json and summary.txt
        assert len(parts) + ("throughput" in parts) + 2 <= MAX_FILES
    for name, limit in limits.items():
        assert (benchmarks / "first_gpu" / f"{name}.py").exists()
        assert re.search(rf"^#     {name} +{limit}   ", text, re.MULTILINE)


def test_an_unknown_part_and_option_are_refused(tmp_path: Path, benchmarks: Path) -> None:
    wrong = script(benchmarks, tmp_path / "out", "OUT", "decoed")
    assert wrong.returncode == 2
    assert "no part 'decoed'; there are: versions streams rates" in wrong.stderr
    assert script(benchmarks, tmp_path / "out", "--fast", "OUT").returncode == 2
    assert not (tmp_path / "out").exists()
