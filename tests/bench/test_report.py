"""The report of a comparison: its figures, plots and files."""

import dataclasses
import json
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from gpupipe.bench import parity, plots, report
from gpupipe.bench.comparison import SCHEMA
from gpupipe.config import Config
from helpers.made_comparison import BATCHES, COMMAND, RATES, measured


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def test_results_hold_what_was_measured_and_where(report_folder: Path) -> None:
    found = json.loads((report_folder / "results.json").read_text(), parse_constant=no_constant)
    assert found["schema"] == SCHEMA == "gpupipe-compare-2"
    assert {
        "time",
        "processor",
        "cores",
        "memory_gib",
        "gpu",
        "python",
        "system",
        "packages",
    } <= found["machine"].keys()
    assert {"gpupipe", "torch", "numpy"} <= found["machine"]["packages"].keys()
    assert (found["command"], found["repeats"], found["cores"], found["interrupted"]) == (
        COMMAND,
        3,
        [0, 1],
        False,
    )
    assert (found["contest"]["batches"], found["contest"]["warm_up"], found["contest"]["cold"]) == (
        BATCHES,
        3,
        True,
    )
    assert found["ratios_to"] == "DataLoader, 16 workers"
    sides = {s["name"]: s for s in found["sides"]}
    assert {name: s["images_per_second"]["rounds"] for name, s in sides.items()} == {
        name: pytest.approx(values) for name, values in RATES.items()
    }
    cpu = sides["DALI on CPU"]
    assert cpu["images_per_second"]["mean"] == pytest.approx(statistics.fmean(RATES["DALI on CPU"]))
    assert cpu["images_per_second"]["standard_deviation"] == pytest.approx(
        statistics.stdev(RATES["DALI on CPU"])
    )
    assert cpu["ratio"]["low"] < cpu["ratio"]["value"] < cpu["ratio"]["high"]
    assert sides["DataLoader, 16 workers"]["ratio"] is None
    assert [s["workers"] for s in found["sides"]] == [None, None, 0, 1, 16]
    first = {
        "device": "cpu",
        "step": "decode",
        "mean": 0,
        "max": 0,
        "psnr": None,
        "limit": 1,
        "limits_max": True,
        "images": 4,
        "holds": True,
    }
    assert found["parity"][0] == first


def test_plots_are_pictures_with_a_title(report_folder: Path) -> None:
    for name, said in (("time", "Time for 100 batches of 256 images"), ("rate", "Images a second")):
        with Image.open(report_folder / f"{name}.png") as image:
            assert image.format == "PNG"
            assert image.width >= 1000
            image.load()
            assert len(np.unique(np.asarray(image.convert("L")))) > 50, "not blank"
        root = ElementTree.parse(report_folder / f"{name}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        title = root.find("{http://www.w3.org/2000/svg}title")
        assert title is not None
        assert said in (title.text or "")


def test_the_same_comparison_makes_the_same_drawing(report_folder: Path, tmp_path: Path) -> None:
    plots.save(measured(RATES), tmp_path)
    assert (tmp_path / "time.svg").read_bytes() == (report_folder / "time.svg").read_bytes()


class References(HTMLParser):
    """All that a page points to, and its styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [
            value or ""
            for name, value in attrs
            if name
            in ("src", "href", "srcset", "data", "action", "poster", "xlink:href", "background")
        ]


def test_the_page_points_to_nothing_outside_itself(report_folder: Path) -> None:
    text = (report_folder / "report.html").read_text()
    page = References()
    page.feed(text)
    assert page.tags.count("img") == 2 + 4 * 5
    assert [r[:40] for r in page.found if not r.startswith("data:")] == []
    assert not {"script", "iframe", "object", "embed"} & set(page.tags)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert not re.search(r"https?:", text)
    assert text.startswith("<!doctype html>")


def test_a_page_says_first_that_the_work_was_not_the_same(
    report_config: Config, report_agreements: list[parity.Agreement], tmp_path: Path
) -> None:
    broken = [
        *report_agreements[:-2],
        *(dataclasses.replace(a, mean=3.0) for a in report_agreements[-2:]),
    ]
    text = report.write(
        tmp_path, measured(RATES), broken, report_config, report_config.source.index(), []
    ).read_text()
    said = (
        "They do not do the same work: the CPU engine on cpu and torchvision differ too much, from "
        f"step &#39;{report_agreements[-2].step}&#39; on."
    )
    assert '<p class="verdict fails">' + said in text
    assert text.index(said) < text.index("<h2>")
    assert text.count(">FAILS<") == 2
    assert "Side by side" not in text
