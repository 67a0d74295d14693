"""Parquet shards, as pyarrow and Hugging Face's data sets read them."""

from pathlib import Path

from gpupipe.conversion.convert import ConversionResult
from gpupipe.sources.hf import Hf
from helpers.conversions import COUNT


def test_pyarrow_reads_the_files_and_labels(
    in_parquet: ConversionResult, photo_folder: Path
) -> None:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(
        [in_parquet.config.parent / shard.shard for shard in in_parquet.shards]
    )
    classes = (in_parquet.config.parent / "classes.txt").read_text().splitlines()
    files = sorted(photo_folder.glob("*/*.jpg"))
    images = [image["bytes"] for image in table["image"].to_pylist()]
    assert images == [file.read_bytes() for file in files]
    assert table["label"].to_pylist() == [classes.index(file.parent.name) for file in files]
    assert table.num_rows == COUNT


def test_the_features_of_hugging_face_name_the_classes(in_parquet: ConversionResult) -> None:
    index = Hf(root=in_parquet.config.parent).index()
    assert index.classes == (in_parquet.config.parent / "classes.txt").read_text().splitlines()
    assert len(index) == COUNT
