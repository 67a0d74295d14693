"""gpupipe profile: what each part of the work costs, what limits, and how much of training is
waiting.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpupipe import config as configs
from gpupipe.bench import profile, profile_report, training
from gpupipe.bench.profile import Profile, Stage
from gpupipe.bench.training import Training
from gpupipe.errors import EngineError, SampleError
from gpupipe.runtime.ranks import cores

CROPPED = [
    "decode",
    {"center_crop": {"size": 32}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
]
COUNTS = {"batch_size": 16, "device": "cpu", "workers": 1}


def quiet(what: str, done: int, total: int) -> None:
    """Nobody watches."""


def measured(
    root: Path, steps: Any = "affine", rounds: int = 1, seconds: float = 0.05, **options: Any
) -> Profile:
    checked = configs.read(
        {"data": {"source": "folder", "root": root}, "pipeline": steps}, **COUNTS | options
    )
    return profile.measure(checked, checked.source.index(), cores(), rounds, seconds, quiet)


@pytest.mark.parametrize(("engine", "rounds"), [("dali", 1), ("cpu", 2), ("dataloader", 1)])
def test_every_part_is_timed_in_every_round(faces: Path, engine: str, rounds: int) -> None:
    found = measured(faces, rounds=rounds, engine=engine)
    assert [s.name for s in found.stages] == [
        "read",
        "decode",
        "random_affine",
        "to_dtype",
        "to torch",
    ]
    assert all(
        len(s.seconds) == len(s.cpu_seconds) == len(s.others) == rounds and min(s.seconds) > 0
        for s in found.stages
    )
    assert min(found.stages[0].seconds) < min(found.stages[1].seconds), (
        "reading a cached file costs far less than decoding it"
    )
    assert found.what["engine"] == engine


def test_images_of_different_sizes_need_no_step_that_makes_them_equal_until_they_are_delivered(
    photos: Path,
) -> None:
    found = measured(photos, ["decode", {"random_resized_crop": {"size": 64}}])
    assert [s.name for s in found.stages] == ["read", "decode", "random_resized_crop", "to torch"]


def test_a_sample_that_cannot_be_decoded_is_left_out(faces: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number, face in enumerate(sorted(faces.glob("*/*.jpg"))[:20]):
        (tmp_path / "a" / f"{number:02}.jpg").write_bytes(
            face.read_bytes() if number % 10 else b"no image"
        )
    for engine in ("dali", "cpu", "dataloader"):
        found = measured(tmp_path, engine=engine, on_error="skip", max_bad=0.5, batch_size=8)
        assert found.whole.rate > 0
    with pytest.raises(SampleError, match=r"00\.jpg|10\.jpg"):
        measured(tmp_path, on_error="raise", batch_size=8)


def test_costs_are_differences_of_the_same_round() -> None:
    before, after = (
        Stage("decode", [1.0, 2.0], [1.0, 1.0]),
        Stage("flip", [1.5, 2.25], [1.25, 1.25]),
    )
    assert after.costs(before) == [0.5, 0.25]
    assert after.cpu_costs(before) == [0.25, 0.25]
    assert before.costs(None) == [1.0, 2.0]


def test_the_command_prints_the_table_what_limits_and_json(
    faces: Path, tmp_path: Path, cli: Any
) -> None:
    words = [
        f"data={{source: folder, root: {faces}}}",
        "batch_size=16",
        "device=cpu",
        "--repeats",
        "1",
        "--repeat-seconds",
        "0.1",
        "--step-ms",
        "20",
    ]
    done: subprocess.CompletedProcess[str] = cli(
        tmp_path, "profile", "lfw", *words, "--json", "out.json"
    )
    assert done.returncode == 0, done.stderr
    assert all(
        name in done.stdout for name in ("read", "decode", "random_affine", "to_dtype", "to torch")
    )
    assert "Waiting for data: " in done.stdout
    assert "DISTURBED" in done.stdout or "the limit cannot be determined" not in done.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["schema"] == profile.SCHEMA
    assert found["limit"] in ("training", "CPU", "storage", "waiting", "unknown")
    assert found["machine"]["cores"] == cores()
    again = cli(tmp_path, "profile", "lfw", "--step-ms", "20", "--model", "resnet18")
    assert again.returncode == 2
    assert "give one" in again.stderr


# --- training


def trained(root: Path, step: Any, seconds: float, **options: Any) -> Training:
    checked = configs.read(
        {"data": {"source": "folder", "root": root}, "pipeline": CROPPED}, **COUNTS | options
    )
    return training.measure(checked, checked.source.index(), "test", step, 2, seconds, quiet)


def test_a_long_step_waits_for_nothing_and_a_short_one_for_nearly_all(faces: Path) -> None:
    long = training.pause(600)  # so that load on the machine is a small share
    assert trained(faces, long, seconds=1.8).waiting.value < 0.15
    assert trained(faces, training.pause(0), seconds=0.15).waiting.value > 0.9


@pytest.mark.parametrize("form", ["dict", "tuple"])
def test_a_model_trains(faces: Path, form: str) -> None:
    found = trained(faces, training.model("squeezenet1_1"), seconds=0.1, format=form, batch_size=4)
    assert len(found.fed) == len(found.replayed) == 2
    assert min(found.fed + found.replayed) > 0


def test_models_that_do_not_exist_or_do_not_fit(faces: Path) -> None:
    with pytest.raises(
        EngineError, match="no classification model 'resnet81'; did you mean 'resnet18'"
    ):
        training.model("resnet81")
    with pytest.raises(
        EngineError, match=r"squeezenet1_1 cannot take images of shape \(4, 1, 32, 32\)"
    ):
        checked = configs.read(
            {
                "data": {"source": "folder", "root": faces},
                "pipeline": [{"decode": {"mode": "gray"}}, *CROPPED[1:]],
            },
            **COUNTS | {"batch_size": 4},
        )
        training.measure(
            checked, checked.source.index(), "", training.model("squeezenet1_1"), 1, 0.01, quiet
        )


def test_busy_cores_of_others_are_noticed(faces: Path) -> None:
    """What this process starts counts as its own: a shell starts them, and ends."""
    start = f"{shlex.quote(sys.executable)} -c 'while True: pass' > /dev/null 2>&1 & echo $!"
    busy = [
        int(subprocess.run(["sh", "-c", start], check=True, capture_output=True).stdout)
        for _ in range(cores())
    ]
    try:
        found = measured(faces, seconds=0.2)
    finally:
        for pid in busy:
            os.kill(pid, signal.SIGKILL)
    assert profile_report.find_limit(found, 2).resource == "unknown"
