"""Histograms count every image once; normalize has the mean of the means."""

from collections import Counter

import numpy as np
import pytest

from gpupipe.inspection.statistics import describe
from inspection.conftest import Planted, open_photo


def test_statistics_are_those_of_the_files(planted: Planted) -> None:
    scan = planted.scan("train")
    facts = describe(scan)
    readable = [row for row in range(len(scan.index)) if row not in scan.errors]
    images = [open_photo(scan.index.location(row)) for row in readable]
    formats = Counter(str(image.format) for image in images)
    histograms = facts["histograms"]
    assert facts["unreadable"] == 1
    assert dict(histograms["format"]) == formats
    assert dict(histograms["class"]) == Counter(scan.index.classes[n] for n in scan.index.labels)
    for side in (min, max):
        name = "shorter side" if side is min else "longer side"
        sizes = [side(image.size) for image in images]
        assert facts["sides"][name][::2] == [min(sizes), max(sizes)]
        for text, count in histograms[name]:
            low, high = map(int, text.split(" to "))
            assert count == sum(low <= size <= high for size in sizes)
    means = np.mean([np.asarray(image, np.float64).mean((0, 1)) / 255 for image in images], 0)
    assert facts["normalize"]["mean"] == pytest.approx(means, abs=0.001)
    assert [0.15 < value < 0.35 for value in facts["normalize"]["std"]] == [True] * 3
