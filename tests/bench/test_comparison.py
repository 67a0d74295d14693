"""What a comparison says of its rounds."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace

import pytest

from gpupipe.bench.comparison import DISTURBED, SCHEMA, Result, Side
from helpers.made_comparison import COMMAND, RATES, measured, result


def test_rates_are_images_by_seconds_in_each_round() -> None:
    side = result("one", 100, 200, 400)
    assert side.rates == pytest.approx([100, 200, 400])
    assert side.mean == pytest.approx(700 / 3)
    assert side.deviation == pytest.approx(statistics.stdev([100, 200, 400]))
    assert side.median(lambda o: o.images / o.seconds) == pytest.approx(200)


def test_one_round_has_no_deviation() -> None:
    assert result("one", 100).deviation is None


def test_ratios_are_to_the_fastest_data_loader() -> None:
    comparison = measured(RATES)
    assert comparison.baseline is not None
    assert comparison.baseline.side.name == "DataLoader, 16 workers"
    assert comparison.ratio(comparison.baseline) is None
    gpu = comparison.ratio(comparison.results[0])
    assert gpu is not None
    assert gpu.value == pytest.approx(144333 / 950, rel=0.05)


def test_without_a_data_loader_they_are_to_the_slowest_side() -> None:
    comparison = measured({name: RATES[name] for name in ("DALI on GPU", "DALI on CPU")})
    assert comparison.baseline is not None
    assert comparison.baseline.side.name == "DALI on CPU"


def test_a_side_that_was_not_measured_is_left_out() -> None:
    comparison = measured(RATES)
    empty = Result(Side("broken", {}, 32))
    more = replace(comparison, results=[empty, *comparison.results])
    assert more.measured == comparison.results
    assert more.baseline is comparison.baseline
    nothing = replace(comparison, results=[empty])
    assert (nothing.baseline, nothing.ratio(empty)) == (None, None)
    assert nothing.as_json()["ratios_to"] is None


def test_notes_that_put_figures_in_doubt_stand_apart() -> None:
    comparison = replace(measured(RATES), notes=["stand-in data", f"{DISTURBED}: two cores"])
    assert comparison.disturbed == [f"{DISTURBED}: two cores"]
    assert comparison.plain_notes == ["stand-in data"]


def test_json_has_all_that_was_measured() -> None:
    written = json.loads(json.dumps(measured(RATES).as_json()))
    assert (written["schema"], written["command"]) == (SCHEMA, COMMAND)
    assert [side["name"] for side in written["sides"]] == list(RATES)
    assert written["ratios_to"] == "DataLoader, 16 workers"
    by_name = {side["name"]: side for side in written["sides"]}
    assert by_name["DataLoader, 16 workers"]["ratio"] is None
    assert by_name["DALI on CPU"]["images_per_second"]["rounds"] == pytest.approx(
        [1700, 1760, 1690]
    )
    assert by_name["DALI on CPU"]["rounds"][0]["engine"] == "dali"
