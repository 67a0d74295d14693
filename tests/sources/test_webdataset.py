"""webdataset: shards that WebDataset's own writer made, and shards that are broken."""

import io
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gpupipe
from gpupipe.sources.webdataset import Webdataset
from gpupipe.testing import check_loader
from helpers import loaders
from helpers.full_product import IS_FULL

STEPS = [
    "decode",
    {"random_affine": {"degrees": 10, "interpolation": "bilinear"}},
    {"random_crop": {"size": 100}},
]
ENGINES: list[dict[str, Any]] = [
    {"engine": "dali"},
    {"engine": "dataloader", "workers": 1},
    {"engine": "dataloader", "workers": 0, "decoder": "pil"},
]


@pytest.fixture(scope="module")
def shards(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The faces, in the folder source's order and with its labels, 20 in each of 3 shards."""
    folder = tmp_path_factory.mktemp("shards")
    classes = sorted(p.name for p in faces.iterdir() if p.is_dir())
    with webdataset.ShardWriter(f"{folder}/faces-%03d.tar", maxcount=20, verbose=0) as sink:
        for n, file in enumerate(sorted(faces.glob("*/*.jpg"))):
            sample = {
                "__key__": f"{n:05}",
                "jpg": file.read_bytes(),
                "cls": classes.index(file.parent.name),
            }
            sink.write(sample | {"json": {"name": file.parent.name}})
    return folder


def load_shards(shards: Any, **options: Any) -> gpupipe.Loader:
    data = {"source": "webdataset", "shards": shards, **options.pop("data", {})}
    steps = options.pop("steps", STEPS)
    return loaders.load(None, steps, data=data, **{"batch_size": 8, **options})


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_samples_labels_and_pixels_are_those_of_the_folder(
    faces: Path, shards: Path, options: dict[str, Any]
) -> None:
    config = {"data": {"source": "folder", "root": faces}, "pipeline": STEPS}
    with (
        load_shards(f"{shards}/faces-{{000..002}}.tar", **options) as found,
        gpupipe.load(config, device="cpu", ids=True, batch_size=8, **options) as expected,
    ):
        assert len(found.index) == 60
        for _ in range(2):
            for a, b in zip(found, expected, strict=True):
                assert torch.equal(a["id"], b["id"])
                assert torch.equal(a["label"], b["label"])
                assert torch.equal(a["image"], b["image"])


@pytest.mark.parametrize("options", ENGINES if IS_FULL else ENGINES[::2], ids=str)
def test_the_contract_holds(shards: Path, options: dict[str, Any]) -> None:
    check_loader(lambda **changes: load_shards(f"{shards}/faces-001.tar", **options, **changes))


def test_patterns_and_labels(faces: Path, shards: Path) -> None:
    with load_shards(
        [f"{shards}/faces-002.tar", f"{shards}/faces-00[01].tar"], engine="dataloader"
    ) as loader:
        assert len(loader.index) == 60
        assert loader.index.location(0) == f"{shards}/faces-002.tar:00040"
    with load_shards(f"{shards}/*.tar", engine="dataloader", data={"label": "json:name"}) as loader:
        assert loader.index.classes == sorted(p.name for p in faces.iterdir() if p.is_dir())
    with load_shards(f"{shards}/*.tar", engine="dataloader", data={"label": None}) as loader:
        assert not loader.index.has_labels


def test_the_index_is_kept_until_a_shard_changes(shards: Path, tmp_path: Path, cache: Path) -> None:
    shard = tmp_path / "one.tar"
    shard.write_bytes((shards / "faces-000.tar").read_bytes())
    time.sleep(2.1)  # an index of what was just written is not kept
    source, said = Webdataset(shards=str(shard)), []
    first = source.index(lambda what, done, total: said.append(what))
    assert len(said) == 1
    again = source.index(lambda what, done, total: said.append(what))
    assert len(said) == 1
    assert again.fingerprint == first.fingerprint
    assert [again.columns["image"].span(i) for i in range(20)] == [
        first.columns["image"].span(i) for i in range(20)
    ]
    shard.write_bytes((shards / "faces-001.tar").read_bytes())
    assert (
        source.index(lambda what, done, total: said.append(what)).fingerprint != first.fingerprint
    )
    assert len(said) == 2


# --- what is broken


@pytest.mark.parametrize("options", ENGINES[:2], ids=str)
def test_a_corrupt_sample_is_named_or_left_out(
    faces: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    good = [p.read_bytes() for p in sorted(faces.glob("*/*.jpg"))[:12]]
    tar(
        tmp_path / "a.tar",
        {
            f"{n:02}.jpg": b"no image at all" if n == 5 else content
            for n, content in enumerate(good)
        },
    )
    with load_shards(
        f"{tmp_path}/a.tar", shuffle=False, data={"label": None}, batch_size=4, **options
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(
            gpupipe.SampleError, match=r"a\.tar:05: .*not an image in a known format"
        ):
            next(iterator)
    with load_shards(
        f"{tmp_path}/a.tar",
        shuffle=False,
        data={"label": None},
        batch_size=4,
        on_error="skip",
        max_bad=0.5,
        **options,
    ) as loader:
        assert sorted(i for b in loader for i in b["id"].tolist()) == [
            n for n in range(12) if n != 5
        ]


@pytest.mark.parametrize("options", ENGINES[:2], ids=str)
def test_a_shard_that_is_cut_off_behind_the_index_is_an_error(
    shards: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    content = (shards / "faces-000.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(content)
    with load_shards(f"{tmp_path}/a.tar", shuffle=False, batch_size=4, **options) as loader:
        (tmp_path / "a.tar").write_bytes(content[: len(content) // 2])
        with pytest.raises(gpupipe.SampleError, match=r"a\.tar:000\d\d: "):
            list(loader)


def tar(path: Path, members: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w") as out:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.type = (len(content) if kind == tarfile.REGTYPE else 0), kind
            out.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"../a.jpg": b"x"}, "must not lead out of its shard"),
        ({"/a.jpg": b"x"}, "must not lead out of its shard"),
        ({"a.jpg": b"x"}, r"a\.tar: a: no member a\.cls \(it has jpg\): set data\.label"),
        ({"a.jpg": b"x", "a.cls": b""}, "is no label"),
        ({"a.jpg": b"x", "a.cls": b"\xff\xfe"}, "a.cls: cannot be read as UTF-8 text"),
        (
            {"a.jpg": b"x", "a.cls": b"10000000"},
            "a.tar:a: the label '10000000' is too large: a number is that of a class, below "
            "10,000,000",
        ),
        ({"a.jpg": b"x", "a.cls": b"-1"}, "a.tar:a: the label '-1' is negative"),
        (
            {"a.txt": b"x"},
            "no sample in 1 shard: none has a member that ends in jpg, jpeg, png, webp: set "
            "data.fields",
        ),
        ({}, "no sample"),
    ],
)
def test_shards_that_are_refused(tmp_path: Path, members: dict[str, bytes], said: str) -> None:
    with pytest.raises(gpupipe.DataError, match=said):
        Webdataset(shards=str(tar(tmp_path / "a.tar", members))).index()


def test_other_files_are_refused(shards: Path, tmp_path: Path) -> None:
    for name, content in (
        ("text", b"hello" * 300),
        ("empty", b""),
        ("cut", (shards / "faces-000.tar").read_bytes()[:100_000]),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(gpupipe.DataError, match=name):
            Webdataset(shards=str(tmp_path / name)).index()
    with pytest.raises(gpupipe.DataError, match="plain file"):
        Webdataset(shards=str(tar(tmp_path / "link.tar", {"a.jpg": b""}, tarfile.SYMTYPE))).index()
    with pytest.raises(gpupipe.DataError, match="no such shard"):
        Webdataset(shards=f"{tmp_path}/none-{{0..3}}.tar").index()
    with pytest.raises(gpupipe.DataError, match="count upwards"):
        Webdataset(shards=f"{tmp_path}/none-{{9..3}}.tar").index()


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cut=st.integers(0, 8000), noise=st.binary(max_size=600), place=st.integers(0, 8000))
def test_no_bytes_do_more_than_be_refused(
    tmp_path: Path, cut: int, noise: bytes, place: int
) -> None:
    whole = tar(
        tmp_path / "whole.tar",
        {
            "a.jpg": b"x" * 700,
            "a.json": json.dumps({"label": "b"}).encode(),
            "b.jpg": b"y" * 10,
            "b.json": b'{"label": 3}',
        },
    )
    content = bytearray(whole.read_bytes()[: max(0, len(whole.read_bytes()) - cut)])
    content[place : place + len(noise)] = noise
    (tmp_path / "fuzzed.tar").write_bytes(bytes(content))
    try:
        found = Webdataset(shards=str(tmp_path / "fuzzed.tar"), label="json:label").index()
    except gpupipe.DataError:
        return
    size = len(content)
    assert all(
        found.columns["image"].span(i).offset + (found.columns["image"].span(i).length or 0) <= size
        for i in range(len(found))
    )
