"""The data sets that gpupipe can download, and the synthetic images that replace them.

YAML keys and messages call the synthetic images "stand-in".
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpupipe.dataset.paths import is_url, missing_folder
from gpupipe.errors import FetchError, did_you_mean
from gpupipe.runtime.files import cache_dir, create_folder_atomically, expand_user, hold_lock
from gpupipe.runtime.progress import Progress, ignore_progress
from gpupipe.sources.fetch import synthetic_faces
from gpupipe.sources.fetch.download import Dataset, download, get_archive_path, unpack

DATASETS = {
    "lfw": Dataset(
        "lfw",
        "Labeled Faces in the Wild, 13,233 images",
        "https://ndownloader.figshare.com/files/5976018",
        "055f7d9c632d7370e6fb4afc7468d40f970c34a80d4c6f50ffec63f5a8d536c0",
    )
}


@dataclass(frozen=True)
class DatasetLocation:
    """The folder of a data set.

    Attributes:
        root: The folder.
        note: A notice that every output repeats, such as "stand-in data, not LFW"; or "".
    """

    root: Path
    note: str


def check_name(name: str) -> str:
    """Return `name` if it is the name of a data set.

    Raises:
        ValueError: No data set has this name. The message suggests the nearest one.
    """
    if name not in DATASETS:
        raise ValueError(f"unknown data set '{name}'{did_you_mean(name, DATASETS)}")
    return name


def locate(
    root: Path, name: str | None, images: int | None, progress: Progress = ignore_progress
) -> DatasetLocation:
    """Return the location of a data set; download it, or draw synthetic images, if it is missing.

    Synthetic images lie beside `root` under another name, so that they are never mistaken for the
    data. Once they exist, no download is tried again.

    Args:
        root: Folder of the data.
        name: Data set to download if `root` does not exist; None to download nothing.
        images: Number of synthetic images to draw if the download fails; None or 0 for none.
        progress: Called with (text, done, total).

    Raises:
        DataError: `root` does not exist and `name` is None.
        FetchError: The download fails and `images` allows no synthetic images.
    """
    location = _find_location(root, images)
    if location:
        return location
    if name is None or is_url(root):
        raise missing_folder(
            root,
            "data.root",
            "put the data there, or set data.root (for instance data.root=/path/to/images)",
        )
    with _hold_lock(root, progress):
        return _find_location(root, images) or _fetch_or_draw(root, name, images, progress)


def _find_location(root: Path, images: int | None) -> DatasetLocation | None:
    roots = [root, _make_stand_in_root(root, images)] if images else [root]
    return next((DatasetLocation(r, _describe_note(r)) for r in roots if r.is_dir()), None)


def _fetch_or_draw(
    root: Path, name: str, images: int | None, progress: Progress
) -> DatasetLocation:
    try:
        _fetch(DATASETS[name], root, progress)
        return DatasetLocation(root, "")
    except FetchError as e:
        if not images:
            raise
        synthetic_root = _make_stand_in_root(root, images)
        progress(f"{e}; making a stand-in", 0, images)
        _make_atomically(
            synthetic_root, lambda folder: synthetic_faces.make(folder, images, progress)
        )
        return DatasetLocation(synthetic_root, _describe_note(synthetic_root))


def get_default_root(name: str) -> Path:
    """Return the folder in which the built-in configs look for a data set.

    That is `$GPUPIPE_DATA/NAME`, or `~/.cache/gpupipe/NAME` if GPUPIPE_DATA is not set.
    """
    return expand_user(os.environ.get("GPUPIPE_DATA", "~/.cache/gpupipe")) / name


def describe_absence(root: Path, name: str | None, images: int | None) -> str:
    """Return a sentence saying that the first run downloads the data, or makes stand-in images.

    Return "" if the data exists, or `name` is None.
    """
    if name is None or _find_location(root, images):
        return ""
    return f"{name} is not here yet: the first run fetches it" + (
        f", or makes {images:,} stand-in images" if images else ""
    )


def explain_stand_in(location: DatasetLocation, root: Path, name: str | None) -> str:
    """Return a warning if synthetic images replace a data set; "" if they do not.

    Args:
        location: The folder that is read instead of `root`, or `root` itself.
        root: The folder of the data set, as the config sets it.
        name: The data set to download; None to download nothing.
    """
    if name is None or location.root == root:
        return ""
    to = "" if root == get_default_root(name) else f" --root {root}"
    return (
        f"{location.note}: {name} could not be fetched, and drawn images in {location.root} stand "
        f"in for it. For the data itself run 'gpupipe fetch {name}{to}', or set data.root"
    )


def _make_stand_in_root(root: Path, images: int) -> Path:
    return root.with_name(f"{root.name}-stand-in-{images}")


def _describe_note(root: Path) -> str:
    return "stand-in data, not LFW" if synthetic_faces.is_stand_in(root) else ""


def fetch(dataset: Dataset, root: Path, progress: Progress = ignore_progress) -> None:
    """Download the archive, check its SHA-256 and unpack it to `root`.

    `root` appears complete or not at all. An existing `root` stays as it is.

    Args:
        dataset: The data set to download.
        root: The new folder.
        progress: Called with (text, done, total).

    Raises:
        FetchError: The download fails, the archive is not the expected one, or the disk cannot be
            written. If the download fails, the message says how to do it by hand.
    """
    with _hold_lock(root, progress):
        if root.is_dir():
            return
        try:
            _fetch(dataset, root, progress)
        except FetchError as e:
            raise FetchError(f"{e}. {explain_by_hand(dataset, root)}") from e


def explain_by_hand(dataset: Dataset, root: Path) -> str:
    """Return instructions to download a data set by hand, for example on another machine."""
    archive_path = get_archive_path(dataset)
    return (
        f"To do it by hand: download {dataset.url}, for instance on another machine, and put it "
        f"at {archive_path}; its SHA-256 is {dataset.sha256}. Then run the command again, which "
        f"checks it and unpacks it to {root}"
    )


def _fetch(dataset: Dataset, root: Path, progress: Progress) -> None:
    def fill(folder: Path) -> None:
        tar = download(dataset, progress)
        progress("unpacking", 0, None)
        unpack(tar, folder)
        tar.unlink(missing_ok=True)

    _make_atomically(root, fill)


@contextlib.contextmanager
def _hold_lock(root: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of a data set, so that one process fetches it while others wait.

    If the cache folder cannot hold a lock, several processes may fetch. The first to finish wins.
    """
    lock = (
        cache_dir()
        / "locks"
        / hashlib.blake2b(os.fsencode(root.absolute()), digest_size=16).hexdigest()
    )
    with contextlib.ExitStack() as stack:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            waiting = f"waiting for another process that fetches or makes {root.name}"
            stack.enter_context(hold_lock(lock, lambda: progress(waiting, 0, None)))
        except OSError:
            pass
        yield


def _make_atomically(root: Path, make: Callable[[Path], None]) -> None:
    """Let `make` fill a temporary folder, then rename it to `root` unless another process did."""
    try:
        if os.path.lexists(root) and not root.is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR, "there is something in its place that is no folder"
            )
        with create_folder_atomically(root) as temporary:
            make(temporary)
    except OSError as e:
        raise FetchError(f"{root} cannot be written: {e.strerror or e}") from e
