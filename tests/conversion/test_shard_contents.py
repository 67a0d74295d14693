"""What is read back is compared with what was written."""

from pathlib import Path
from typing import Any

import pytest

from gpupipe import config as configs
from gpupipe.conversion import parquet_shards, tar_shards
from gpupipe.conversion.plan import Options, plan_storage
from gpupipe.conversion.samples import ConvertedReader, ConvertedSample
from gpupipe.conversion.shard_contents import ShardContents
from gpupipe.decoders.chain import DecoderChain


@pytest.mark.parametrize("format", ["tar", "parquet"])
def test_a_byte_that_the_disk_changes_is_found_and_its_sample_named(
    photo_config: Path, format: Any, tmp_path: Path
) -> None:
    config = configs.read(photo_config)
    index = config.source.index()
    plan = plan_storage(config, index, Options(format))
    path, contents = tmp_path / "shard", ShardContents()
    writer = (
        tar_shards.TarWriter(plan, path)
        if format == "tar"
        else parquet_shards.ParquetWriter(plan, index, path)
    )
    for sample in ConvertedReader(plan, index, DecoderChain()).read(range(3)):
        assert isinstance(sample, ConvertedSample)
        writer.add(sample)
        contents.add(sample)
    writer.close()

    def read_back() -> str:
        stored = (
            tar_shards.read_back(plan, path, contents)
            if format == "tar"
            else parquet_shards.read_back(plan, path)
        )
        return contents.explain_difference(stored)

    assert read_back() == ""
    shard = bytearray(path.read_bytes())
    image = Path(index.location(1)).read_bytes()
    shard[shard.index(image) + len(image) // 2] ^= 16
    path.write_bytes(shard)
    assert read_back() == "'image' of sample 1 has other bytes than were written"
    contents.labels[2] = 99
    path.write_bytes(bytes(shard))
    contents.digests.clear()
    assert read_back() == "its labels are not those that were written"
