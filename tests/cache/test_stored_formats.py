"""Configs of a store in shards: what is refused, and where."""

from pathlib import Path

import pytest

import gpupipe
from gpupipe import config as configs

GOOD = """\
data:
  source: remote
  url: s3://store/train
  shards: "**/*.tar"
  cache: {dir: cache, max_bytes: 1GB}
pipeline: [decode]
loader: {batch_size: 4}
"""
TAR = '"**/*.tar"'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (TAR, "a.tar.gz", "4:11: data.shards: a.tar.gz is compressed as a whole"),
        (TAR, "['*.tar', b.tgz]", "data.shards: b.tgz is compressed as a whole"),
        (TAR, "x.zarr/**", '4:11: data.shards: x.zarr/.* of Zarr stores.*: "x.zarr"'),
        (TAR, "train-*-of-8", "4:11: data.shards: the ending of train-.* is none of .tar"),
        (
            TAR,
            "x.tar\n  shard_format: webdatset",
            "5:17: data.shard_format: 'webdatset' should be .*; did you mean 'webdataset'?",
        ),
        (TAR, "[]", "4:11: data.shards"),
        (
            TAR,
            TAR + "\n  fields: {image: [jpg, npy]}",
            "5:11: data.fields: image: .* of image files or of .npy",
        ),
        (TAR, TAR + "\n  fields: {label: jpg}", "'label' cannot be the name of a field or value"),
        (
            TAR,
            TAR + "\n  options: {shrads: 3}",
            "data.options.*: the source of the shards has no such",
        ),
        (
            TAR,
            TAR + "\n  values: [a]",
            "5:11: data.values: with shards, a mapping {VALUE: PLACE}",
        ),
        (TAR, TAR + "\n  classes: [a, a]", "5:12: data.classes: a name is empty, or stands twice"),
        (
            TAR,
            TAR + "\n  classes: nowhere.txt",
            "5:12: data.classes: nowhere.txt: no text file that can",
        ),
        (TAR, TAR + "\n  weight: w", "weight: of a manifest, and none is given"),
        (
            TAR,
            TAR + "\n  cache_decoded: {where: memory, max_bytes: 8MB}",
            "cache_decoded: of data.shards",
        ),
        (
            "1GB",
            "1GB, shard_size: 8MB",
            "5:10: data.cache: shard_size: the shards of data.shards",
        ),
        ("1GB", "1GB, min_shard: 8", "5:39: data.cache.min_shard: unknown key; did you mean"),
        (
            "1GB",
            "1GB, min_shards: 0",
            "5:51: data.cache.min_shards is 0, but should be at least 1",
        ),
        (
            f"  shards: {TAR}\n  cache: {{dir: cache",
            "  cache: {dir: cache, min_shards: 3",
            "4:10: data.cache: min_shards: of a store in shards: see data.shards",
        ),
        (
            f"  shards: {TAR}",
            "  shardz: x",
            "4:3: data.shardz: unknown key; did you mean 'shards'?",
        ),
        (
            f"  shards: {TAR}",
            "  classes: [a]",
            "classes: of shards, and none are given: set data.shards",
        ),
    ],
)
def test_mistakes_are_named_at_their_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(GOOD)
    configs.read(path)
    assert old in GOOD
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(gpupipe.ConfigError, match=said.replace("(", r"\(")):
        configs.read(path)


def test_classes_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("cat\n dog \n")
    path = tmp_path / "x.yaml"
    path.write_text(GOOD.replace(TAR, f"{TAR}\n  classes: {tmp_path}/names.txt"))
    source = configs.read(path).source
    assert source.classes == ("cat", "dog")  # type: ignore[attr-defined]
