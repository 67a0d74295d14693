"""The tables that the commands print."""

import io
import math
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

import gpupipe
from gpupipe import config as configs
from gpupipe.bench.parity import Agreement
from gpupipe.bench.tables import (
    batch_table,
    headline,
    new_table,
    parity_table,
    speed_columns,
    speed_rows,
    steps_table,
)
from helpers.made_comparison import measured


def printed(table: Table, width: int = 60) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]


def test_a_headline_names_the_store_of_which_nothing_is_there_yet(
    faces: Path, tmp_path: Path
) -> None:
    """Data without labels have no classes to count."""
    data = {"source": "folder", "root": faces, "label": None}
    steps = ["decode", {"center_crop": {"size": 8}}]
    with gpupipe.load({"data": data, "pipeline": steps}, device="cpu") as loader:
        assert ": 60 images, pipeline inline, " in headline(loader)
    cache = {"dir": tmp_path / "cache", "max_bytes": "1MB", "workers": 0}
    data = {"source": "remote", "url": tmp_path.as_uri(), "shards": "{0..1}.tar", "cache": cache}
    with gpupipe.load({"data": data, "pipeline": steps}, device="cpu") as loader:
        assert f": {tmp_path.as_uri()}, pipeline inline, " in headline(loader)


def test_the_title_and_the_names_of_columns_stand_above_the_rows() -> None:
    table = new_table("Rates", "side", "images/s")
    table.add_row("DALI on CPU", "1,700")
    title, head, _, row = printed(table)
    assert title == "Rates"
    assert head.split() == ["side", "images/s"]
    assert row.split() == ["DALI", "on", "CPU", "1,700"]


def test_without_names_there_is_no_head() -> None:
    table = new_table("", "", "")
    table.add_row("cores", "2")
    assert [line.split() for line in printed(table)] == [["cores", "2"]]


def test_parameters_are_written_as_yaml_writes_them() -> None:
    choice = {"random_choice": {"transforms": [{"mixup": {"alpha": 0.2}}, {"cutmix": {}}]}}
    config = {
        "data": {"source": "folder", "root": "."},
        "pipeline": ["decode", {"resize": {"size": [20, 30]}}, {"to_dtype": {"dtype": "float32"}}],
        "batch": [choice],
    }
    checked = configs.read(config)
    rows = [*printed(steps_table(checked.pipeline), 300), *printed(batch_table(checked.batch), 300)]
    text = "\n".join(rows)
    assert "transforms: [{mixup: {alpha: 0.2}}, {cutmix: " in text
    assert "apply_exif_orientation: false" in text
    assert "size: [20, 30]" in text
    assert "antialias: true" in text
    assert "None" not in text


def test_a_row_has_the_means_and_medians_of_a_side() -> None:
    comparison = measured({"one": [100, 200, 300], "two": [100, 100, 100]})
    one = comparison.results[0]
    for n, run in enumerate(one.outcomes):
        one.outcomes[n] = replace(
            run, peak_memory=(n + 1) * 512 * 2**20, first_batch_seconds=n / 2, cpu_seconds=1.0
        )
    heads = speed_columns(comparison, "times two")
    row = dict(zip(heads, next(iter(speed_rows(comparison))), strict=True))
    images = one.outcomes[0].images
    assert row[""] == "one"
    assert row["images/s"].startswith("200 ± 100")
    assert row["first batch"] == "0.50 s"
    assert row["peak memory"] == "1,024 MiB"
    assert row["CPU s / 1,000"] == f"{1000 / images:.2f}"


def test_the_pixels_of_one_device_fit_into_80_columns_and_those_of_two_name_theirs() -> None:
    row = Agreement("cpu", "random_horizontal_flip", 0.0, 0.0, math.inf, 0.5, False, 8)
    title, head, _, line = printed(parity_table([row], "the CPU engine"), 80)
    assert title.startswith("the CPU engine on cpu against torchvision")
    assert head.split() == ["up", "to", "mean", "largest", "PSNR", "limit", "result"]
    assert line.split() == "random_horizontal_flip 0.000 0.0 identical mean ≤ 0.5 holds".split()
    both = printed(parity_table([row, replace(row, device="gpu:0")], "DALI"), 120)
    assert both[0].startswith("DALI against torchvision")
    assert [line.split()[1] for line in both[3:]] == ["cpu", "gpu:0"]
