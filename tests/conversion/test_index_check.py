"""How the index of shards differs from that of the source."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from gpupipe import config as configs
from gpupipe.conversion.convert import ConversionResult
from gpupipe.conversion.index_check import explain_difference


def test_a_count_a_label_and_a_name_that_differ_are_told(
    photo_config: Path, tarred: ConversionResult
) -> None:
    index = configs.build_index(configs.read(photo_config))
    other = configs.build_index(configs.read(tarred.config))
    rows = np.arange(len(index))

    def explain(changed: object) -> str:
        return explain_difference(tarred.plan, index, rows, changed)  # type: ignore[arg-type]

    assert explain(other) == ""
    assert "hold 3 samples, and the source 24" in explain(other.subset(rows[:3]))
    assert "labels" in explain(replace(other, labels=np.roll(other.labels, 1)))
    assert "names of the classes" in explain(replace(other, classes=other.classes[::-1]))
