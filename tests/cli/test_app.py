"""The commands as a user runs them: real processes, their output, their exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from helpers import forked_python
from helpers.forked_python import executable
from helpers.full_product import IS_FULL

CONFIG = """\
data: {source: folder, root: ROOT}
pipeline:
- decode
- random_affine: {degrees: 5, interpolation: bilinear}
- to_dtype: {dtype: float32, scale: true}
loader: {batch_size: 16, device: cpu}
"""


@pytest.fixture
def config(faces: Path, tmp_path: Path) -> Path:
    path = tmp_path / "faces.yaml"
    path.write_text(CONFIG.replace("ROOT", str(faces)))
    return path


def gpupipe(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked_python.run(["-m", "gpupipe", *arguments], env=os.environ | environment)


def test_run_says_what_runs_and_ends_with_a_table(config: Path) -> None:
    done = gpupipe("run", config, "--repeats", 2)
    assert done.returncode == 0, done.stderr
    assert "60 images in" in done.stdout
    assert done.stdout.count("stand-in") == 1
    assert "(stand-in data, not LFW)" in done.stdout
    assert "cpu on cpu" in done.stdout
    for row in (
        "images/s",
        "standard deviation of 2 passes",
        "MB/s",
        "s per 1,000 images",
        "time to first batch",
        "peak memory",
    ):
        assert row in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 160


def test_run_writes_json_and_a_grid(config: Path, tmp_path: Path) -> None:
    done = gpupipe(
        "run",
        config,
        "batch_size=8",
        "--batches",
        10,
        "--repeats",
        2,
        "--json",
        tmp_path / "r.json",
        "--show",
        tmp_path / "g.png",
        "--quiet",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "r.json").read_text())
    assert float(done.stdout) == pytest.approx(found["images_per_second"]["mean"], abs=0.1)
    assert found["what"]["note"] == "stand-in data, not LFW"
    assert found["what"]["batch_size"] == 8
    assert [p["batches"] for p in found["passes"]] == [10, 10]
    assert [p["images"] for p in found["passes"]] == [
        76,
        76,
    ]  # 8 batches of an epoch of 60 (the last of 4), and 2 of the next
    assert found["machine"]["cores"] == len(os.sched_getaffinity(0))
    grid = Image.open(tmp_path / "g.png").convert("RGB")
    assert grid.width == 8 * 250
    assert len(grid.getcolors(grid.width * grid.height) or []) > 1000


def test_passes_are_longer_than_what_is_made_ahead(config: Path, tmp_path: Path) -> None:
    """An epoch of 2 batches with 4 made ahead: passes of several epochs, unless others are asked
    for, which tell nothing.
    """
    short = ["batch_size=30", "prefetch=4", "--json", tmp_path / "r.json"]
    done = gpupipe("run", config, *short, "--repeats", 2)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "r.json").read_text())
    assert [p["batches"] for p in found["passes"]] == [16, 16]
    assert found["images_per_second"]["mean"] > 0
    assert "2 passes of 16 batches" in " ".join(done.stdout.split())
    done = gpupipe("run", config, *short, "--epochs", 1)
    assert done.returncode == 0, done.stderr
    assert (
        "cannot be determined: a pass has 2 batches, and 4 are made ahead: --batches 16 or "
        "more tells it" in " ".join(done.stdout.split())
    )
    assert "MB/s" not in done.stdout
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["images_per_second"] is None
    assert "--batches 16" in found["too_short"]
    done = gpupipe("run", config, *short, "--batches", 7, "--quiet")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: images/s cannot be determined: a pass has 7 batches")


def test_shipped_names_and_the_stand_in_are_enough(tmp_path: Path) -> None:
    """In an empty directory, with no network: `gpupipe run lfw`."""
    done = gpupipe(
        "run",
        "lfw",
        "data.stand_in=32",
        "batch_size=8",
        "--repeats",
        1,
        GPUPIPE_DATA=str(tmp_path),
        https_proxy="http://127.0.0.1:1",
    )
    assert done.returncode == 0, done.stderr
    assert "making a stand-in" in done.stderr
    assert "lfw (stand-in data, not LFW): 32 images" in done.stdout
    again = gpupipe(
        "run", "lfw", "data.stand_in=32", "batch_size=8", "--repeats", 1, GPUPIPE_DATA=str(tmp_path)
    )
    assert "making" not in again.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "lfww"], 2, "did you mean 'lfw'"),
        (["run", "lfw", "loader.bacth_size=3"], 2, "did you mean 'batch_size'"),
        (["run", "lfw", "batch_size=0"], 2, "at least 1"),
        (["run", "lfw", "nonsense"], 2, "key=value"),
        (["run", "lfw", "--epochs", "0"], 2, "0 is not in the range"),
        (["rum"], 2, "No such command 'rum'"),
        (["run", "imagenet_eval", "data.root=/nowhere"], 1, "/nowhere: no such folder"),
        (["fetch", "lwf"], 2, "did you mean 'lfw'"),
        (["check", "imagenet_eval", "data.root=/nowhere"], 1, "/nowhere: no such folder"),
        (["run", "lfw", "--batch_size=3"], 2, "write batch_size=VALUE after the config"),
        (["run", "lfw", "--batch", "3"], 2, "Did you mean '--batches'?"),
        (["run", "lfw", "--data.root", "/x"], 2, "write data.root=VALUE after the config"),
        (["run", "lfw", "--batchs=3"], 2, "'--batches'"),
        (["run", "/usr"], 2, "a config is a YAML file: 'gpupipe init /usr' writes one"),
        (["check", "lfw", "data.root=$HOME/x"], 2, "environment variables are ${oc.env:HOME}"),
        (["check", "imagenet_eval", "data.root=/etc/passwd"], 1, "this is a file, and data.root"),
        (
            ["check", "imagenet_eval", "data={source: webdataset, shards: /usr}"],
            1,
            "this is a folder, and data.shards names files: write /usr/*",
        ),
        (
            ["check", "imagenet_eval", "data={source: file_list, file: /usr}"],
            2,
            "/usr is a folder, and no list of files",
        ),
    ],
    ids=str,
)
def test_mistakes_have_a_message_and_a_code_and_no_traceback(
    arguments: list[str], code: int, words: str
) -> None:
    done = gpupipe(*arguments)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_all_mistakes_of_a_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(
        "data: {source: folder, rot: /x}\npipeline: affin\nloader:\n  batch_size: many\n"
    )
    done = gpupipe("check", path)
    assert done.returncode == 2
    for place in (":1:24:", ":2:11:", ":4:15:"):
        assert f"wrong.yaml{place}" in done.stderr


def test_a_corrupt_sample_ends_with_its_path_or_is_skipped_and_counted(
    config: Path, faces: Path, tmp_path: Path
) -> None:
    root = tmp_path / "set"
    (root / "one").mkdir(parents=True)
    for n, path in enumerate(sorted(faces.glob("*/*.jpg"))[:20]):
        (root / "one" / f"{n}.jpg").write_bytes(path.read_bytes())
    bad = root / "one" / "7.jpg"
    bad.write_bytes(bad.read_bytes()[:5000])
    done = gpupipe("run", config, f"data.root={root}")
    assert done.returncode == 1
    assert f"{bad}: a JPEG that was cut off" in done.stderr
    log = tmp_path / "bad.jsonl"
    done = gpupipe(
        "run", config, f"data.root={root}", "on_error=skip", "max_bad=0.1", f"quarantine={log}"
    )
    assert done.returncode == 0, done.stderr
    assert "1 sample left out" in done.stdout
    assert json.loads(log.read_text())["path"] == str(bad)


def test_check_prints_the_plan_and_writes_it_as_json(config: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    done = gpupipe("check", config, "batch=[{mixup: {alpha: 0.2}}]", "--json", file)
    assert done.returncode == 0, done.stderr
    plan = json.loads(file.read_text())
    assert [step["step"] for step in plan["steps"]] == ["decode", "random_affine", "to_dtype"]
    spec = {"shape": [3, None, None], "dtype": "float32", "layout": "CHW"}
    assert spec.items() <= plan["steps"][2].items()
    assert plan["steps"][2]["parameters"] == {"dtype": "float32", "scale": True}
    (mixup,) = plan["batch_steps"]
    assert (mixup["step"], mixup["parameters"]["alpha"]) == ("mixup", 0.2)
    operators = plan["operators"]["cpu"]
    assert "random_affine" in [name for row in operators for name in row["steps"]]
    assert all(row["operator"] in done.stdout for row in operators)
    assert plan["facts"]
    assert done.stdout.endswith("\n".join([*plan["facts"], ""]))
    for word in ("random_affine", "(?, ?, 3)", "60 samples", "4 batches of up to 16"):
        assert word in done.stdout
    done = gpupipe("check", config, "engine=dali")
    for word in ("warp_affine", "experimental.warp_perspective", "crop_mirror_normalize"):
        assert word in done.stdout


def test_what_is_measured_under_a_schedule_is_said(config: Path) -> None:
    schedule = "{value: 5, until: 2, then: 30}"
    config.write_text(config.read_text().replace("degrees: 5", f"degrees: {schedule}"))
    checked = gpupipe("check", config).stdout
    assert "schedules: 1 change, the steps above are those of epoch 0" in checked
    assert "from epoch 2 on: random_affine.degrees=[-30.0, 30.0]" in checked
    measured = gpupipe("parity", config)
    assert measured.returncode == 0, measured.stderr
    assert "the numbers of schedules are those of epoch 0" in measured.stderr
    assert re.search(r"images that the CPU engine decoded: \d+ by \w+", measured.stdout)
    assert re.search(r"images that the DataLoader decoded: \d+ by torchvision", measured.stdout)
    assert "epoch 0" not in gpupipe("run", config).stderr


@pytest.mark.parametrize("seconds", [0.5, 2.0] if IS_FULL else [0.3, 1.0])
def test_ctrl_c_ends_at_once(config: Path, seconds: float) -> None:
    command = [executable(), "-m", "gpupipe", "run", str(config), "--epochs", "100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert time.monotonic() - sent < 10  # 0.3 s on an idle machine; 100,000 epochs take hours
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    # Beside other load the first batch may not be there yet; then there is nothing to print.
    assert not out or "time to first batch" in out


def test_version() -> None:
    command = [sys.executable, "-m", "gpupipe", "--version"]
    assert subprocess.check_output(command, text=True).startswith("gpupipe, version 0.")
