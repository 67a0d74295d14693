"""Shards of Streaming: one that the package wrote, and damage of every kind."""

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pytest

from gpupipe.formats import DamagedError
from gpupipe.formats.mds import Bytes, parse_shard

RECORDS = Path(__file__).parents[1] / "data" / "records"
TOLD = json.loads((RECORDS / "records.json").read_text())


@pytest.fixture
def data() -> Bytes:
    return np.frombuffer((RECORDS / "streaming.mds").read_bytes(), np.uint8)


def test_a_shard_of_streaming_is_read_as_it_was_written(data: Bytes) -> None:
    columns = parse_shard(data)
    assert sorted(columns) == ["floats", "image", "label", "name", "small", "weight"]
    image = columns["image"]
    spans = zip(image.begin.tolist(), image.end.tolist(), strict=True)
    digests = [hashlib.blake2b(data[a:b].tobytes()).hexdigest() for a, b in spans]
    assert digests == [record["image"] for record in TOLD]
    assert columns["name"].read_texts(data) == [record["name"] for record in TOLD]
    for name in ("label", "weight"):
        numbers = columns[name].read_numbers(data)
        assert numbers.tolist() == [record[name] for record in TOLD]
        assert numbers.dtype == ("int64" if name == "label" else "float64")
    assert columns["small"].read_numbers(data).tolist() == [256 + n for n in range(len(TOLD))]
    assert columns["floats"].array == ("float32", (3,))
    begin = columns["floats"].begin
    for n, record in enumerate(TOLD):
        found = data[begin[n] : begin[n] + 12].view("<f4")
        assert found.tolist() == np.array(record["floats"], np.float32).tolist()


def test_a_compressed_shard_is_named() -> None:
    with pytest.raises(ValueError, match="compressed with zstd"):
        parse_shard(np.frombuffer(b"\x28\xb5\x2f\xfd" + bytes(100), np.uint8))


def test_damage_is_an_error_or_harmless_and_never_leads_out_of_the_file(data: Bytes) -> None:
    dice, refused = random.Random(5), 0
    config_end = int(data[4:8].view("<u4")[0])
    for _ in range(2000):
        damaged = bytearray(data)
        kind = dice.randrange(3)
        if kind == 0:
            damaged = damaged[: dice.randrange(len(damaged))]
        else:
            for _ in range(dice.randrange(1, 4)):
                limit = config_end if kind == 1 else len(damaged)
                damaged[dice.randrange(limit)] = dice.randrange(256)
        content = np.frombuffer(bytes(damaged), np.uint8)
        try:
            for column in parse_shard(content).values():
                assert (column.begin <= column.end).all()
                assert int(column.begin.min()) >= 0
                assert int(column.end.max()) <= len(content)
        except DamagedError:
            refused += 1
        except ValueError as e:
            assert "zstd" in str(e)
    assert refused > 900
