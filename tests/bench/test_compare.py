"""gpupipe compare and parity, as a user calls them, and what their figures mean."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plugin import install

from gpupipe import config as configs
from gpupipe.bench import compare, statistics, tables
from gpupipe.bench.compare import Comparison, Result, Side
from gpupipe.bench.contestant import ContestOutcome, forget
from gpupipe.bench.machine import Company
from gpupipe.bench.parity import measure

ALL_STEPS = [
    "decode",
    {"resize": {"size": 130}},
    {"pad": {"padding": 4, "padding_mode": "reflect"}},
    {"center_crop": {"size": 120}},
    {"random_crop": {"size": 110}},
    {"random_affine": {"degrees": 10, "translate": [0.1, 0.1], "interpolation": "bilinear"}},
    {"random_rotation": {"degrees": 10, "interpolation": "bilinear"}},
    {"random_resized_crop": {"size": 96}},
    "random_horizontal_flip",
    "random_vertical_flip",
    {"grayscale": {"num_output_channels": 3}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}},
]


def cli(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpupipe", *words]
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


@pytest.fixture
def config(faces: Path, tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(
        f"data: {{source: folder, root: {faces}}}\npipeline: affine\nloader: {{batch_size: "
        f"16, device: cpu}}\n"
    )
    return file


def test_compare_prints_a_table_and_a_verdict_and_writes_json(config: Path) -> None:
    done = cli(
        config.parent,
        "compare",
        "config.yaml",
        "--cpu-workers",
        "1",
        "--repeats",
        "2",
        "--batches",
        "3",
        "--json",
        "out.json",
        "--out",
        "made here",
    )
    assert done.returncode == 0, done.stderr
    assert "report: made here/report.html" in done.stdout
    assert sorted(p.name for p in (config.parent / "made here").iterdir()) == [
        "rate.png",
        "rate.svg",
        "report.html",
        "results.json",
        "time.png",
        "time.svg",
    ]
    found = json.loads((config.parent / "out.json").read_text())
    assert found["schema"] == compare.SCHEMA
    assert (
        found["command"]
        == "gpupipe compare config.yaml --cpu-workers 1 --repeats 2 --batches 3 --json "
        "out.json --out 'made here'"
    )
    assert (found["repeats"], found["contest"]["batches"], found["contest"]["cold"]) == (
        2,
        3,
        False,
    )
    assert (
        "<title>gpupipe compare: config</title>"
        in (config.parent / "made here" / "report.html").read_text()
    )
    assert [s["name"] for s in found["sides"]] == ["DALI on CPU", "DataLoader, 1 worker"]
    assert all(
        len(s["rounds"]) == 2 and s["rounds"][0]["images"] in range(12 * 2, 16 * 3 + 1)
        for s in found["sides"]
    )
    assert found["ratios_to"].startswith("DataLoader")
    assert "random_affine" in done.stdout, "parity comes with it"
    assert any(
        words in done.stdout
        for words in ("times as many images as", "within the noise", "cannot be determined")
    )
    assert "round 2 of 2: DataLoader, 1 worker" in done.stderr


def test_ctrl_c_keeps_what_was_measured(config: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "gpupipe",
        "compare",
        "config.yaml",
        "--cpu-workers",
        "1",
        "--repeats",
        "50",
        "--batches",
        "2",
        "--json",
        "out.json",
    ]
    process = subprocess.Popen(
        command, cwd=config.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr
        while "round 2 of 50: DataLoader" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "DALI on CPU" in out
    found = json.loads((config.parent / "out.json").read_text())
    assert found["interrupted"]
    assert [len(s["rounds"]) for s in found["sides"]] == [2, 1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cpu-workers", "two"], "'two' is not a number"),
        (["--cores", "100000"], "100000, but this process may use"),
    ],
)
def test_usage_mistakes(config: Path, words: list[str], said: str) -> None:
    done = cli(config.parent, "compare", "config.yaml", *words)
    assert done.returncode == 2
    assert said in done.stderr


# --- parity


def test_every_step_agrees_on_real_photographs(photos: Path, tmp_path: Path) -> None:
    checked = configs.read(
        {"data": {"source": "folder", "root": str(photos)}, "pipeline": ALL_STEPS}
    )
    found = list(measure(checked, checked.source.index(), ["cpu"], 8))
    assert [a.step for a in found] == [e.key for e in checked.pipeline.entries]
    assert {a.step: (a.mean, a.most) for a in found if not a.holds} == {}
    assert all(a.psnr > 35 for a in found)
    assert found[0].largest
    assert not found[-1].largest
    limits = {a.step: a.limit for a in found}
    assert (limits["decode"], limits["resize"], limits["random_affine"], limits["normalize"]) == (
        1,
        0.5,
        1,
        2,
    ), "0.5 for each step that interpolates"


PLUGIN = '''
from gpupipe.pipeline.step import Step, decoded


class Brighten(Step):
    """Adds 3 levels; its lowering is wrong, and adds 5."""

    def spec(self, given):
        return decoded(given)

    def lower(self, image, p):
        from nvidia.dali import fn, types
        image.apply("brighten", lambda pixels: fn.cast_like(pixels // 2 + 5, pixels))

    def torch(self, image, p):
        return image // 2 + 3
'''


def test_a_broken_step_fails_by_its_name(config: Path) -> None:
    folder = install(config.parent, "broken", PLUGIN, brighten="Brighten")
    done = cli(
        folder,
        "parity",
        "config.yaml",
        "pipeline=[decode, random_horizontal_flip, brighten]",
        "--samples",
        "8",
        PYTHONPATH=os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    )
    assert done.returncode == 1, done.stderr
    assert "differ too much, from step 'brighten' on" in done.stderr
    assert done.stdout.count("holds") == 2


def test_max_diff_is_the_limit(config: Path) -> None:
    checked = configs.read(config)
    assert all(a.holds for a in measure(checked, checked.source.index(), ["cpu"], 4))
    assert (
        cli(config.parent, "parity", "config.yaml", "--samples", "4", "--max-diff", "0").returncode
        == 1
    )


# --- other processes


def test_what_other_processes_take_is_told_apart_and_said() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.3)
        with Company() as company:
            started = time.process_time()
            while time.process_time() < started + 0.3:
                pass
        assert company.cores > 0.15
        assert 0.25 < company.cpu_seconds < 0.5
    finally:
        busy.kill()
        busy.wait()
    assert "DISTURBED: other processes kept up to 0.9" in compare.disturbance(0.9)[0]
    assert compare.disturbance(0.01) == []


# --- a cold page cache


def resident(file: Path) -> int:
    """Pages of a file that are in the page cache."""
    import ctypes
    import mmap

    with file.open("r+b") as f, mmap.mmap(f.fileno(), 0) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        assert (
            ctypes.CDLL(None, use_errno=True).mincore(
                ctypes.c_void_p(address), ctypes.c_size_t(len(mapped)), found
            )
            == 0
        )
        return sum(page & 1 for page in found)


def test_cold_drops_the_images_from_the_page_cache(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for n in range(3):
        (tmp_path / "a" / f"{n}.jpg").write_bytes(bytes(100_000))
    checked = configs.read({"data": {"source": "folder", "root": tmp_path}, "pipeline": ["decode"]})
    files = sorted(tmp_path.glob("a/*.jpg"))
    assert all(resident(f) > 20 for f in files), "just written"
    forget(checked.source.index())
    assert [resident(f) for f in files] == [0, 0, 0]


# --- figures


def outcome(rate: float) -> ContestOutcome:
    return ContestOutcome("dali", "cpu", "2 threads", 1000, 10, 1000 / rate, 0.1, 1.0, 1)


def comparison(**rates: list[float]) -> Comparison:
    sides = {"dali": Side("DALI", {}), **{f"w{n}": Side(f"{n} workers", {}, n) for n in range(9)}}
    return Comparison(
        [Result(sides[name], [outcome(r) for r in values]) for name, values in rates.items()], []
    )


def test_a_ratio_is_that_of_paired_rounds() -> None:
    """Both sides drift by the same factor from round to round: the ratio does not."""
    found = statistics.ratio([200.0, 100.0, 400.0], [100.0, 50.0, 200.0])
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))
    assert found.certain
    assert statistics.ratio([2.0], [1.0]) == statistics.Ratio(2.0, None, None)


def test_an_interval_holds_the_truth_nineteen_times_in_twenty() -> None:
    import random

    draw = random.Random(0)
    held = 0
    for _ in range(2000):
        a = [math.exp(draw.gauss(0.3, 0.05)) for _ in range(5)]
        b = [math.exp(draw.gauss(0.0, 0.05)) for _ in range(5)]
        found = statistics.ratio(a, b)
        assert found.low and found.high
        held += found.low <= math.exp(0.3) <= found.high
    assert 0.93 < held / 2000 < 0.97


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (
            {"dali": [300, 310, 305], "w2": [100, 101, 99]},
            ["DALI delivers 3.05 times as many images as 2 workers"],
        ),
        (
            {"dali": [100, 130, 90], "w2": [105, 95, 110]},
            ["DALI and 2 workers are within the noise"],
        ),
        ({"dali": [300.0], "w2": [100.0]}, ["in a single round"]),
        (
            {
                "dali": [300, 301, 302],
                "w1": [100, 101, 100],
                "w2": [190, 191, 192],
                "w4": [191, 189, 193],
            },
            ["DALI delivers", "from 4 workers over 2"],
        ),
        (
            {"dali": [300, 301, 302], "w1": [100, 101, 100], "w2": [190, 191, 192]},
            ["DALI delivers", "still gains at 2 workers"],
        ),
        ({"dali": [100, 101, 99], "w2": [300, 301, 302]}, ["2 workers delivers 3.0"]),
        (
            {"dali": [100, 101, 99]},
            ["Only DALI was measured: there is nothing to compare it with."],
        ),
    ],
)
def test_verdicts(rates: dict[str, list[float]], said: list[str]) -> None:
    found = compare.verdict(comparison(**rates))
    assert len(found) == len(said)
    assert all(expected in sentence for expected, sentence in zip(said, found, strict=True)), found


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (
            {"dali": [1.0, 500.0, 3.0], "w2": [100.0, 101.0, 2.0]},
            "Whether 2 workers or DALI is faster cannot be determined",
        ),
        (
            {"dali": [1500, 4000, 9000], "w2": [100, 101, 100]},
            "DALI is faster than 2 workers; how many times cannot be determined",
        ),
    ],
)
def test_an_interval_that_tells_nothing_is_no_verdict(
    rates: dict[str, list[float]], said: str
) -> None:
    found = comparison(**rates)
    if "Whether" in said:
        found.results.sort(key=lambda r: -r.mean)
        said = (
            f"Whether {found.results[0].side.name} or {found.results[1].side.name} is faster "
            "cannot be determined"
        )
    verdict = compare.verdict(found)[0]
    assert verdict.startswith(said)
    assert "the rounds differ too much" in verdict
    assert "More --repeats or --batches" in verdict
    assert "within the noise" not in verdict
    assert not re.search(r"\d{5}", verdict)


def test_what_more_workers_gain_may_be_unknown() -> None:
    found = compare.verdict(comparison(w1=[100, 900, 20], w2=[500, 60, 70]))
    assert "What the DataLoader gains from 2 workers over 1 cannot be determined" in found[1]


def test_rounds_no_longer_than_what_is_made_ahead_are_no_verdict() -> None:
    found = comparison(dali=[300, 301, 302], w2=[100, 101, 99])
    for o in found.results[1].outcomes:
        o.batches, o.batches_ahead = 4, 4
    said = compare.verdict(found)[0]
    assert (
        said == "Which is faster cannot be determined: a round has 4 batches, and 2 workers makes "
        "4 "
        "ahead: --batches 16 or more tells it."
    )


def test_an_interval_that_bounds_nothing_is_not_spelt_out() -> None:
    rows = list(tables.speed_rows(comparison(dali=[1.0, 500.0], w2=[100.0, 101.0])))
    assert rows[0][2].endswith(" to over 1,000)")
    assert rows[1][2] == "1"


def test_sides_depend_on_what_there_is() -> None:
    checked = configs.read(
        {"data": {"source": "folder", "root": "/nowhere"}, "pipeline": ["decode"]}
    )
    names = {
        (gpus, dali): [s.name for s in compare.sides(checked, [0, 2], gpus, dali)[0]]
        for gpus in (0, 1)
        for dali in (True, False)
    }
    loaders = ["DataLoader, 0 workers", "DataLoader, 2 workers"]
    assert names[1, True] == ["DALI on GPU", "DALI on CPU", *loaders]
    assert names[0, True] == ["DALI on CPU", *loaders]
    assert names[0, False] == names[1, False] == loaders
