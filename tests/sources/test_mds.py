"""The source mds: samples, fields, labels, values and mistakes."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.sources.mds import Mds
from helpers.loaders import ENGINES
from helpers.record_files import RECORDS, TOLD

SHARD = RECORDS / "streaming.mds"


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_batches_have_images_labels_and_values(tmp_path: Path, options: dict[str, Any]) -> None:
    for n in range(2):
        shutil.copy(SHARD, tmp_path / f"shard.{n:05}.mds")
    data = {"source": "mds", "shards": f"{tmp_path}/*.mds", "values": {"w": "weight", "n": "small"}}
    config = {"data": data, "pipeline": ["decode", {"resize": {"size": [20, 20]}}]}
    with gpupipe.load(config, device="cpu", batch_size=3, ids=True, **options) as loader:
        assert len(loader.index) == 2 * len(TOLD)
        for batch in loader:
            rows = (batch["id"] % len(TOLD)).tolist()
            assert batch["label"].tolist() == [TOLD[row]["label"] for row in rows]
            assert batch["w"].tolist() == [TOLD[row]["weight"] for row in rows]
            assert batch["n"].tolist() == [256 + row for row in rows]


def test_arrays_and_labels_that_are_names() -> None:
    source = Mds(shards=str(SHARD), fields={"x": "floats"}, label="name")
    index = source.index()
    assert index.classes == ["a", "b", "c"]
    assert [index.classes[n] for n in index.labels] == [record["name"] for record in TOLD]
    assert source.specs()["x"].shape == (3,)
    assert index.read(1).view("<f4").tolist() == pytest.approx(TOLD[1]["floats"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fields": {"image": "imgae"}}, "no column 'imgae'; did you mean 'image'.*it has"),
        ({"fields": {"image": "name"}}, "the encoding str, and a field needs jpeg, png, bytes"),
        ({"label": "weight"}, "holds float64, and no labels: set data.label"),
        ({"label": "image"}, "the encoding bytes, and holds no numbers"),
        ({"values": {"v": "name"}}, "the encoding str, and holds no numbers"),
    ],
)
def test_mistakes_are_named_with_the_shard(options: dict[str, Any], said: str) -> None:
    with pytest.raises(gpupipe.DataError, match=rf"streaming.mds: .*{said}"):
        Mds(shards=str(SHARD), **options).index()
