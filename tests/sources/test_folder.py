"""The folder source: what it finds, in ImageFolder's order."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

import gpupipe
from gpupipe.errors import ConfigError, DataError
from gpupipe.sources.folder import Folder
from helpers.folders import found, grow, is_mapped, make_files_old, names, settle


@pytest.fixture(scope="module")
def jpegs(faces: Path) -> list[bytes]:
    return [p.read_bytes() for p in sorted(faces.glob("*/*.jpg"))]


# --- what is found


def test_the_same_as_image_folder_in_the_same_order(tmp_path: Path) -> None:
    grow(
        tmp_path,
        "b/2.JPG",
        "b/10.jpg",
        "b/1.png",
        "B/upper.jpeg",
        "a b/x y.webp",
        "c/z.jpg",
        "c/deep/er/1.TIFF",
        "c/deep/2.bmp",
        "c/a.ppm",
    )
    grow(
        tmp_path,
        "c/deep b/3.pgm",
        "c/deep-er/4.tif",
        "d/1.jpg.jpg",
        "d/notes.txt",
        "d/jpg",
        "d/x.jpg.bak",
        "ü/ö.jpg",
        "loose.jpg",
    )
    (tmp_path / "d" / "none").mkdir()
    theirs = ImageFolder(str(tmp_path))
    index = Folder(root=tmp_path).index()
    assert index.classes == theirs.classes
    assert [index.location(i) for i in range(len(index))] == [path for path, _ in theirs.samples]
    assert index.labels.tolist() == theirs.targets
    assert len(index) == 13


def test_on_real_photographs_too(photos: Path) -> None:
    theirs = ImageFolder(str(photos))
    index = Folder(root=photos).index()
    assert index.classes == theirs.classes
    assert [(index.location(i), int(index.labels[i])) for i in range(len(index))] == [
        (os.path.realpath(p), t) for p, t in theirs.samples
    ]


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    grow(
        tmp_path,
        "a/1.jpg",
        "a/.2.jpg",
        "a/._1.jpg",
        "a/.thumbnails/3.jpg",
        ".git/4.jpg",
        "a/b/.5.jpg",
        "a/b/6.jpg",
    )
    index = Folder(root=tmp_path).index()
    assert names(index) == ["a/1.jpg", "a/b/6.jpg"]
    assert index.classes == ["a"]


def test_a_folder_with_an_images_name_is_a_folder(tmp_path: Path) -> None:
    grow(tmp_path, "a/1.jpg", "a/x.jpg/2.jpg", "y.jpg/3.jpg")
    (tmp_path / "a" / "empty.jpg").mkdir()
    assert found(Folder(root=tmp_path).index()) == [
        ("a/1.jpg", "a"),
        ("a/x.jpg/2.jpg", "a"),
        ("y.jpg/3.jpg", "y.jpg"),
    ]


def test_a_fifo_and_a_broken_link_are_samples_that_cannot_be_read(tmp_path: Path) -> None:
    """As for ImageFolder. A run reports them, where leaving them out would say nothing."""
    grow(tmp_path, "a/1.jpg")
    os.mkfifo(tmp_path / "a" / "2.jpg")
    (tmp_path / "a" / "3.jpg").symlink_to(tmp_path / "nowhere.jpg")
    index = Folder(root=tmp_path).index()
    assert names(index) == ["a/1.jpg", "a/2.jpg", "a/3.jpg"]
    with pytest.raises(OSError, match="not a regular file"):
        index.read(1)
    with pytest.raises(FileNotFoundError):
        index.read(2)


def test_extensions(tmp_path: Path) -> None:
    grow(tmp_path, "a/1.jpg", "a/2.PNG", "a/3.png", "a/4.data")
    assert names(Folder(root=tmp_path, extensions=("png",)).index()) == ["a/2.PNG", "a/3.png"]
    assert names(Folder(root=tmp_path, extensions=(".Data", "JPG")).index()) == [
        "a/1.jpg",
        "a/4.data",
    ]


def test_links_are_followed(tmp_path: Path) -> None:
    grow(tmp_path / "elsewhere", "one/1.jpg", "two/2.jpg", "3.jpg")
    root = grow(tmp_path / "root", "a/0.jpg")
    (root / "linked").symlink_to(tmp_path / "elsewhere" / "one")
    (root / "a" / "inner").symlink_to(tmp_path / "elsewhere" / "two", target_is_directory=True)
    (root / "a" / "4.jpg").symlink_to(tmp_path / "elsewhere" / "3.jpg")
    theirs = ImageFolder(str(root))
    index = Folder(root=root).index()
    assert found(index) == [
        ("a/0.jpg", "a"),
        ("a/4.jpg", "a"),
        ("a/inner/2.jpg", "a"),
        ("linked/1.jpg", "linked"),
    ]
    assert [index.location(i) for i in range(len(index))] == [p for p, _ in theirs.samples]


def test_a_linked_root_is_the_folder_that_it_points_at(tmp_path: Path) -> None:
    root = grow(tmp_path / "root", "a/0.jpg")
    (tmp_path / "link").symlink_to(root)
    assert Folder(root=tmp_path / "link").index().location(0) == str(root / "a" / "0.jpg")


@pytest.mark.parametrize("target", [".", "..", "../..", "../../..", "../../../root/a"])
def test_a_link_back_is_named_and_not_followed_for_ever(tmp_path: Path, target: str) -> None:
    root = grow(tmp_path / "root", "a/0.jpg", "a/b/1.jpg")
    (root / "a" / "b" / "back").symlink_to(target)
    with pytest.raises(DataError, match=f"^{root}/a/b/back: a link to a folder that it lies in"):
        Folder(root=root).index()


def test_a_link_to_itself_is_named(tmp_path: Path) -> None:
    root = grow(tmp_path / "root", "a/0.jpg")
    (root / "a" / "self").symlink_to("self")
    with pytest.raises(DataError, match=f"^{root}/a/self: cannot be read"):
        Folder(root=root).index()


def test_an_empty_class_folder_is_named(tmp_path: Path) -> None:
    grow(tmp_path, "a/1.jpg", "b/notes.txt", "c/1.jpg")
    with pytest.raises(
        DataError,
        match=rf"^{tmp_path}/b: no image \(\.jpg, .*remove the empty class folder, or set "
        r"data\.extensions",
    ):
        Folder(root=tmp_path).index()


def test_all_empty_class_folders_are_named_at_once(tmp_path: Path) -> None:
    grow(tmp_path, "a/1.jpg", *(f"empty{n:02}/notes.txt" for n in range(22)))
    with pytest.raises(DataError) as error:
        Folder(root=tmp_path).index()
    said = str(error.value)
    assert said.startswith(f"{tmp_path}/empty00, {tmp_path}/empty01, ")
    assert f"{tmp_path}/empty19 and 2 more: no image (" in said


def test_no_class_folders(tmp_path: Path) -> None:
    grow(tmp_path, "1.jpg", ".hidden/2.jpg")
    with pytest.raises(DataError, match=rf"^{tmp_path}: no class folders: .*ROOT/CLASS/image\.jpg"):
        Folder(root=tmp_path).index()


def test_no_root(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^{tmp_path}/none: no such folder"):
        Folder(root=tmp_path / "none").index()


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    grow(tmp_path / "images", "a/1.jpg")
    assert Folder(root=Path("~/images")).index().root == str(tmp_path / "images")


def test_progress_counts_images(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    Folder(root=grow(tmp_path, "a/1.jpg", "a/2.jpg", "b/3.jpg")).index(
        lambda *what: seen.append(what)
    )
    assert seen == [("scanning", 2, None), ("scanning", 3, None)]


# --- names


ODD_NAMES = [
    "plain.jpg",
    "with space.jpg",
    " .jpg",
    "new\nline.jpg",
    "tab\t.jpg",
    "naïve Ωµ 图.jpg",
    "é.jpg",
    "🙂.jpg",
    "percent%20.jpg",
    "'quote\".jpg",
    "back\\slash.jpg",
    "-dash.jpg",
    "*.jpg",
    "l" * 240 + ".jpg",
    os.fsdecode(b"latin1-\xe9\xff.jpg"),
    os.fsdecode(b"\xff\xfe.jpg"),
]


def test_any_file_name_is_read_right(tmp_path: Path, jpegs: list[bytes]) -> None:
    """Each odd name holds another image: the pixels show that the right file was opened."""
    classes = ["plain", "with space", "line\nbreak", "クラス", os.fsdecode(b"byte-\xe9")]
    for n, name in enumerate(ODD_NAMES):
        grow(tmp_path, f"{classes[n % 5]}/{name}")
        (tmp_path / classes[n % 5] / name).write_bytes(jpegs[n])
    settle(tmp_path)
    for _ in ("scanned", "from the cached index"):
        with gpupipe.load(
            {"data": {"source": "folder", "root": tmp_path}, "pipeline": ["decode"]},
            batch_size=5,
            device="cpu",
            ids=True,
        ) as loader:
            seen = {}
            for batch in loader:
                for id, label, image in zip(
                    batch["id"].tolist(), batch["label"].tolist(), batch["image"], strict=True
                ):
                    path = Path(loader.index.location(id))
                    seen[path.name] = image.sum().item()
                    assert path.parent == tmp_path / loader.index.classes[label]
    assert set(seen) == set(ODD_NAMES)
    assert seen == {name: pixel_sum(jpegs[n]) for n, name in enumerate(ODD_NAMES)}


def pixel_sum(jpeg: bytes) -> int:
    return int(np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"), np.int64).sum())


def test_a_root_whose_name_is_not_unicode(tmp_path: Path, jpegs: list[bytes]) -> None:
    root = grow(tmp_path / os.fsdecode(b"r\xf6\xf6t"), "a/1.jpg")
    (root / "a" / "1.jpg").write_bytes(jpegs[0])
    settle(root)
    index = Folder(root=root).index()
    assert index.location(0) == str(root / "a" / "1.jpg")
    assert is_mapped(Folder(root=root).index())
    assert (
        index.columns["image"].encoded_paths(np.array([0]))[0].tobytes()
        == os.fsencode(root) + b"/a/1.jpg"
    )


def test_two_copies_of_a_folder_have_one_fingerprint(tmp_path: Path) -> None:
    grow(tmp_path / "one", "b/1.jpg", "a/2.jpg")
    grow(tmp_path / "two", "a/2.jpg", "b/1.jpg")
    assert (
        Folder(root=tmp_path / "one").index().fingerprint
        == Folder(root=tmp_path / "two").index().fingerprint
    )


def test_a_home_that_cannot_be_found_is_a_mistake_in_the_config() -> None:
    with pytest.raises(gpupipe.ConfigError, match="home directory"):
        gpupipe.load(
            {"data": {"source": "folder", "root": "~nobody-of-this-name/x"}, "pipeline": ["decode"]}
        )


def test_a_flat_folder_without_labels(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files_old(monkeypatch)
    for n, path in enumerate(sorted(faces.glob("*/*.jpg"))[:5]):
        target = tmp_path / ("deep/er" if n == 3 else "") / f"{n}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    with pytest.raises(DataError, match=r"/deep/er|remove the empty|data\.label"):
        Folder(root=tmp_path / "deep" / "er").index()
    source = Folder(root=tmp_path, label=None)
    for _ in range(2):  # scanned, then from the cache
        index = source.index()
        names = [index.names[i] for i in range(len(index))]
        assert names == ["0.jpg", "1.jpg", "2.jpg", "4.jpg", "deep/er/3.jpg"]
        assert (index.classes, index.has_labels) == ([], False)
        assert index.summary == "5 samples without labels"
    (tmp_path / "deep" / "9.jpg").write_bytes(path.read_bytes())
    assert len(source.index()) == 6, "a new file in a folder below is noticed"
    assert Folder(root=tmp_path).index().classes == ["deep"], "with labels it is another index"


@pytest.mark.parametrize("engine", ["cpu", "dali", "dataloader"])
def test_batches_without_labels(faces: Path, engine: str) -> None:
    config = {
        "data": {"source": "folder", "root": str(faces), "label": None},
        "pipeline": ["decode", {"resize": {"size": [8, 8]}}, {"to_dtype": {"dtype": "float32"}}],
        "loader": {"engine": engine, "device": "cpu", "batch_size": 4, "workers": 0, "threads": 1},
    }
    with gpupipe.load(config, ids=True) as loader:
        assert sorted(next(iter(loader))) == ["id", "image"]
    with pytest.raises(ConfigError, match=r"loader\.format: a tuple is .* no label"):
        gpupipe.load(config, format="tuple")
    with pytest.raises(ConfigError, match=r"loader\.weights: class_balanced .* no label"):
        gpupipe.load(config, weights="class_balanced")
    with pytest.raises(ConfigError, match=r"batch\.0: mixup .* the data has none"):
        gpupipe.load(config | {"batch": ["mixup"]})


def test_an_unlabelled_folder_without_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no image \(\.jpg"):
        Folder(root=tmp_path, label=None).index()
