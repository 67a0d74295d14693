"""What a comparison says of its rounds."""

import json
import math
import random
import re
import statistics
from dataclasses import replace

import pytest

from gpupipe.bench import tables
from gpupipe.bench.comparison import (
    DISTURBED,
    SCHEMA,
    Comparison,
    Contestant,
    Ratio,
    Result,
    describe_verdict,
    ratio,
    t_95,
)
from gpupipe.bench.contestant import Contest, ContestOutcome
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
    assert comparison.baseline.contestant.name == "DataLoader, 16 workers"
    assert comparison.ratio(comparison.baseline) is None
    gpu = comparison.ratio(comparison.results[0])
    assert gpu is not None
    assert gpu.value == pytest.approx(144333 / 950, rel=0.05)


def test_without_a_data_loader_they_are_to_the_slowest_side() -> None:
    comparison = measured({name: RATES[name] for name in ("DALI on GPU", "DALI on CPU")})
    assert comparison.baseline is not None
    assert comparison.baseline.contestant.name == "DALI on CPU"


def test_a_side_that_was_not_measured_is_left_out() -> None:
    comparison = measured(RATES)
    empty = Result(Contestant("broken", {}, 32))
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


def outcome(rate: float) -> ContestOutcome:
    return ContestOutcome("dali", "cpu", "2 threads", 1000, 10, 1000 / rate, 0.1, 1.0, 1)


def make_comparison(**rates: list[float]) -> Comparison:
    contestants = {f"w{n}": Contestant(f"{n} workers", {}, n) for n in range(9)}
    contestants["dali"] = Contestant("DALI", {})
    return Comparison(
        [Result(contestants[name], [outcome(r) for r in values]) for name, values in rates.items()],
        Contest("lfw", (), {}, (0,), 10, 1, False),
        repeats=len(next(iter(rates.values()))),
        notes=[],
    )


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
    found = describe_verdict(make_comparison(**rates))
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
    found = make_comparison(**rates)
    if "Whether" in said:
        found.results.sort(key=lambda r: -r.mean)
        first, second = (result.contestant.name for result in found.results)
        said = f"Whether {first} or {second} is faster cannot be determined"
    verdict = describe_verdict(found)[0]
    assert verdict.startswith(said)
    assert "the rounds differ too much" in verdict
    assert "More --repeats or --batches" in verdict
    assert "within the noise" not in verdict
    assert not re.search(r"\d{5}", verdict)


def test_what_more_workers_gain_may_be_unknown() -> None:
    found = describe_verdict(make_comparison(w1=[100, 900, 20], w2=[500, 60, 70]))
    assert "What the DataLoader gains from 2 workers over 1 cannot be determined" in found[1]


def test_rounds_no_longer_than_what_is_made_ahead_are_no_verdict() -> None:
    found = make_comparison(dali=[300, 301, 302], w2=[100, 101, 99])
    for o in found.results[1].outcomes:
        o.batches, o.batches_ahead = 4, 4
    said = describe_verdict(found)[0]
    assert (
        said == "Which is faster cannot be determined: a round has 4 batches, and 2 workers makes "
        "4 "
        "ahead: --batches 16 or more tells it."
    )


def test_an_interval_that_bounds_nothing_is_not_spelt_out() -> None:
    rows = list(tables.speed_rows(make_comparison(dali=[1.0, 500.0], w2=[100.0, 101.0])))
    assert rows[0][2].endswith(" to over 1,000)")
    assert rows[1][2] == "1"


def test_a_ratio_is_that_of_paired_rounds() -> None:
    """Both sides drift by the same factor from round to round: the ratio does not."""
    found = ratio([200.0, 100.0, 400.0], [100.0, 50.0, 200.0])
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))
    assert found.is_certain
    assert ratio([2.0], [1.0]) == Ratio(2.0, None, None)


def test_an_interval_holds_the_truth_nineteen_times_in_twenty() -> None:
    draw = random.Random(0)
    held = 0
    for _ in range(2000):
        a = [math.exp(draw.gauss(0.3, 0.05)) for _ in range(5)]
        b = [math.exp(draw.gauss(0.0, 0.05)) for _ in range(5)]
        found = ratio(a, b)
        assert found.low and found.high
        held += found.low <= math.exp(0.3) <= found.high
    assert 0.93 < held / 2000 < 0.97


def test_students_t_is_that_of_scipy() -> None:
    """scikit-learn, a dependency of the tests, brings SciPy."""
    from scipy import stats

    for freedom in range(1, 21):
        expected = stats.t.ppf(0.975, freedom)
        assert t_95(freedom) == pytest.approx(expected, abs=6e-4), freedom
    for freedom in (21, 30, 100):
        assert t_95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=5e-3)
