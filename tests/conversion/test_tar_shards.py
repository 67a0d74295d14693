"""Tar shards, as WebDataset, tarfile and DALI's wds2idx read them."""

import gc
import tarfile
from pathlib import Path

import pytest

from gpupipe.conversion.convert import ConversionResult
from helpers.conversions import COUNT


# WebDataset leaves files open.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_the_files_and_labels(
    tarred: ConversionResult, photo_folder: Path
) -> None:
    webdataset = pytest.importorskip("webdataset", reason="needs the library WebDataset")
    shards = [str(tarred.config.parent / shard.shard) for shard in tarred.shards]
    data = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
    samples = [(sample["jpg"], int(sample["cls"])) for sample in data]
    classes = (tarred.config.parent / "classes.txt").read_text().splitlines()
    files = sorted(photo_folder.glob("*/*.jpg"))
    assert samples == [(file.read_bytes(), classes.index(file.parent.name)) for file in files]
    assert len(samples) == COUNT
    del data
    gc.collect()


def test_the_index_is_the_one_that_dali_makes(tarred: ConversionResult, tmp_path: Path) -> None:
    wds2idx = pytest.importorskip("wds2idx", reason="needs DALI")
    shard = tarred.config.parent / tarred.shards[0].shard
    with wds2idx.IndexCreator(str(shard), str(tmp_path / "a.idx"), verbose=False) as creator:
        creator.create_index()
    assert shard.with_suffix(".idx").read_text() == (tmp_path / "a.idx").read_text()


def test_members_have_no_times_and_no_owners(tarred: ConversionResult) -> None:
    with tarfile.open(tarred.config.parent / tarred.shards[0].shard) as tar:
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in tar} == {(0, 0, 0, "", "")}
