"""Several fields a sample, of manifests: images, masks, and numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.sources.file_list import FileList
from helpers.image_fields import COUNT, STEPS, mask, png
from helpers.loaders import ENGINES


# --- manifests
@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """list.csv, .tsv and .parquet over the same files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("listed")
    rows = [(f"{n}.png", f"masks/{n}.png", n % 3, n / 4, n * 7) for n in range(COUNT)]
    (folder / "masks").mkdir()
    for n, (image, of, *_) in enumerate(rows):
        (folder / image).write_bytes(png(np.dstack([mask(n)] * 3)))
        (folder / of).write_bytes(png(mask(n)))
    for suffix, delimiter in (("csv", ","), ("tsv", "\t")):
        lines = [
            delimiter.join(map(str, row))
            for row in [("path", "mask_path", "label", "weight", "x"), *rows]
        ]
        (folder / f"list.{suffix}").write_text("\n".join(lines))
    columns = dict(
        zip(("path", "mask_path", "label", "weight", "x"), zip(*rows, strict=True), strict=True)
    )
    pq.write_table(
        pa.table({name: list(column) for name, column in columns.items()}), folder / "list.parquet"
    )
    return folder


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_fields_of_manifests_are_delivered_together(
    listed: Path, suffix: str, options: dict[str, Any]
) -> None:
    data = {
        "source": "file_list",
        "file": listed / f"list.{suffix}",
        "fields": {"mask": "mask_path"},
        "values": ["weight", "x"],
        "masks": ["mask"],
    }
    with gpupipe.load(
        {"data": data, "pipeline": STEPS}, device="cpu", ids=True, batch_size=4, **options
    ) as loader:
        assert loader.index.values["weight"].dtype == np.float64
        assert loader.index.values["x"].dtype == np.int64
        for batch in loader:
            ids = batch["id"].tolist()
            assert torch.equal(batch["image"][:, :1], batch["mask"])
            assert batch["weight"].tolist() == [i / 4 for i in ids]
            assert batch["x"].tolist() == [i * 7 for i in ids]


def test_manifests_in_every_format_say_the_same(listed: Path) -> None:
    prints = {
        FileList(file=listed / f"list.{s}", fields={"mask": "mask_path"}, values=("weight", "x"))
        .index()
        .fingerprint
        for s in ("csv", "tsv", "parquet")
    }
    assert len(prints) == 1


MANIFESTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "text in a column of numbers": (
        "path,label,w\na,1,2\nb,1,two\n",
        {"values": ["w"]},
        ":3: 'two' in the column 'w' is no number",
    ),
    "nothing in a column of numbers": (
        "path,label,w\na,1,\n",
        {"values": ["w"]},
        ":2: '' in the column 'w' is no number",
    ),
    "no such column of numbers": (
        "path,label,wieght\na,1,2\n",
        {"values": ["weight"]},
        ":1: no column 'weight'; did you mean 'wieght'[?]; set data.values",
    ),
    "no such column of paths": (
        "path,label\na,1\n",
        {"fields": {"mask": "mask"}},
        ":1: no column 'mask'; known: label, path; set data.fields.mask",
    ),
    "a mask outside": (
        "path,label,m\na,1,../../etc/passwd\n",
        {"fields": {"mask": "m"}},
        ":2: '../../etc/passwd' does not lie in",
    ),
    "an absolute mask": (
        "path,label,m\na,1,x\nb,1,/etc/passwd\n",
        {"fields": {"mask": "m"}},
        ":3: '/etc/passwd' does not lie in",
    ),
}


@pytest.mark.parametrize(("text", "options", "said"), MANIFESTS.values(), ids=MANIFESTS)
def test_manifests_that_are_refused(
    tmp_path: Path, text: str, options: dict[str, Any], said: str
) -> None:
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(gpupipe.DataError, match=f"^{tmp_path}/l.csv{said}"):
        FileList(file=tmp_path / "l.csv", **options).index()


@pytest.mark.parametrize(
    ("suffix", "options", "said"),
    [
        ("txt", {"values": ["w"]}, "a .txt has no columns: leave out values"),
        ("csv", {"fields": {"image": "m"}}, "'image' cannot be the name of a field or value"),
        ("csv", {"fields": {"mask": "m"}, "values": ["mask"]}, "'mask' cannot be the name"),
    ],
    ids=str,
)
def test_options_of_manifests_that_are_refused(
    tmp_path: Path, suffix: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(gpupipe.ConfigError, match=said):
        gpupipe.load(
            {
                "data": {"source": "file_list", "file": tmp_path / f"l.{suffix}", **options},
                "pipeline": ["decode"],
            }
        )
