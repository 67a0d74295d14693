"""The data sets that gpupipe can download, and the synthetic images that replace them.

YAML keys and messages call the synthetic images "stand-in".
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import lzma
import os
import shutil
import socket
import tarfile
import threading
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpupipe.dataset.source import Progress, quiet
from gpupipe.errors import DataError, FetchError, did_you_mean
from gpupipe.fetch import synthetic_faces
from gpupipe.runtime.atomic_write import create_folder_atomically
from gpupipe.runtime.cache_dir import cache_dir
from gpupipe.runtime.extras import require_extra
from gpupipe.runtime.file_lock import hold_lock

if TYPE_CHECKING:
    import requests

_CONNECT_SECONDS = 4.0
_READ_SECONDS = 8.0
_NO_ARCHIVE = (tarfile.TarError, EOFError, ValueError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class Dataset:
    """A tar archive that contains one folder, which becomes the root of the data set.

    Attributes:
        name: Name in YAML and on the command line.
        title: Name for people, with the number of images.
        url: Address of the archive.
        sha256: SHA-256 of the archive, in hexadecimal.
    """

    name: str
    title: str
    url: str
    sha256: str


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
        note: What every output must say about the data, such as that it is synthetic; or "".
    """

    root: Path
    note: str


def known(name: str) -> str:
    """Return `name` if it is the name of a data set.

    Raises:
        ValueError: It is not; the message suggests the nearest name.
    """
    if name not in DATASETS:
        raise ValueError(f"unknown data set '{name}'{did_you_mean(name, DATASETS)}")
    return name


def present(
    root: Path, name: str | None, images: int | None, progress: Progress = quiet
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
    location = _existing_location(root, images)
    if location:
        return location
    if name is None:
        raise DataError(
            f"{root}: no such folder: put the data there, or set data.root (for instance "
            "data.root=/path/to/images)"
        )
    with _data_set_lock(root, progress):
        return _existing_location(root, images) or _fetch_or_draw(root, name, images, progress)


def _existing_location(root: Path, images: int | None) -> DatasetLocation | None:
    roots = [root, _stand_in_root(root, images)] if images else [root]
    return next((DatasetLocation(r, _note(r)) for r in roots if r.is_dir()), None)


def _fetch_or_draw(
    root: Path, name: str, images: int | None, progress: Progress
) -> DatasetLocation:
    try:
        _fetch(DATASETS[name], root, progress)
        return DatasetLocation(root, "")
    except FetchError as e:
        if not images:
            raise
        synthetic_root = _stand_in_root(root, images)
        progress(f"{e}; making a stand-in", 0, images)
        _make_atomically(
            synthetic_root, lambda folder: synthetic_faces.make(folder, images, progress)
        )
        return DatasetLocation(synthetic_root, _note(synthetic_root))


def default_root(name: str) -> Path:
    """Return the folder in which the built-in configs look for a data set.

    That is `$GPUPIPE_DATA/NAME`, or `~/.cache/gpupipe/NAME` if GPUPIPE_DATA is not set.
    """
    return Path(os.environ.get("GPUPIPE_DATA", "~/.cache/gpupipe")).expanduser() / name


def absent(root: Path, name: str | None, images: int | None) -> str:
    """Return a sentence about what `present` would download or draw first, or ""."""
    if name is None or _existing_location(root, images):
        return ""
    return f"{name} is not here yet: the first run fetches it" + (
        f", or makes {images:,} stand-in images" if images else ""
    )


def _stand_in_root(root: Path, images: int) -> Path:
    return root.with_name(f"{root.name}-stand-in-{images}")


def _note(root: Path) -> str:
    return "stand-in data, not LFW" if synthetic_faces.is_stand_in(root) else ""


def fetch(dataset: Dataset, root: Path, progress: Progress = quiet) -> None:
    """Download the archive, check its SHA-256 and unpack it to `root`.

    `root` appears complete or not at all. An existing `root` stays as it is.

    Args:
        dataset: What to download.
        root: The new folder.
        progress: Called with (text, done, total).

    Raises:
        FetchError: The download fails, the archive is not the expected one, or the disk cannot be
            written.
    """
    with _data_set_lock(root, progress):
        if not root.is_dir():
            _fetch(dataset, root, progress)


def _fetch(dataset: Dataset, root: Path, progress: Progress) -> None:
    def fill(folder: Path) -> None:
        archive = _download(dataset, progress)
        progress("unpacking", 0, None)
        unpack(archive, folder)
        archive.unlink(missing_ok=True)

    _make_atomically(root, fill)


@contextlib.contextmanager
def _data_set_lock(root: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of a data set: one process fetches it, the others wait.

    If the cache folder cannot hold a lock, each process fetches. The first to finish then wins.
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


def _download(dataset: Dataset, progress: Progress) -> Path:
    require_extra("fetch", ("pooch",), f"downloading {dataset.name}", DataError)
    import pooch
    import requests

    folder = cache_dir() / "downloads"
    _check_name_resolves(dataset.url)
    downloader = pooch.HTTPDownloader(
        progressbar=_PoochProgress(f"downloading {dataset.name}", progress),
        timeout=(_CONNECT_SECONDS, _READ_SECONDS),
    )
    pooch.get_logger().setLevel("ERROR")
    try:
        return Path(
            pooch.retrieve(
                dataset.url,
                f"sha256:{dataset.sha256}",
                f"{dataset.name}.tar",
                folder,
                downloader=downloader,
            )
        )
    except requests.RequestException as e:
        raise FetchError(
            f"{dataset.name} cannot be downloaded from {dataset.url} ({_describe_error(e)})"
        ) from e
    except ValueError as e:
        raise FetchError(
            f"{dataset.name}: what {dataset.url} sent is not the data set (its SHA-256 differs)"
        ) from e
    except OSError as e:
        raise FetchError(f"{dataset.name} cannot be stored in {folder}: {e.strerror or e}") from e


def _describe_error(error: requests.RequestException) -> str:
    import requests

    if error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    return "no answer in time" if isinstance(error, requests.Timeout) else type(error).__name__


def _check_name_resolves(url: str) -> None:
    """Raise FetchError soon if the name server does not answer.

    The HTTP library's time-outs do not cover the name server.
    """
    host = urllib.parse.urlsplit(url).hostname
    if host is None or urllib.request.getproxies():
        return
    errors: list[str] = []

    def resolve() -> None:
        try:
            socket.getaddrinfo(host, None)
            errors.append("")
        except OSError as e:
            errors.append(e.strerror or str(e))

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(_CONNECT_SECONDS)
    if not errors or errors[0]:
        raise FetchError(
            f"{host} cannot be found ({errors[0] if errors else 'the name server does not answer'})"
        )


class _PoochProgress:
    """A progress bar with the methods that pooch calls."""

    def __init__(self, what: str, progress: Progress) -> None:
        self.what, self.progress, self.total, self.done = what, progress, 0, 0

    def update(self, count: int) -> None:
        self.done += count
        self.progress(self.what, min(self.done, self.total or self.done), self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        """Do nothing: no resource is open."""


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the one folder in a tar archive as `folder`.

    Raises:
        FetchError: The archive does not hold exactly one folder, or a member lies outside it or is
            neither a file nor a folder.
    """
    unpacked = folder.with_name(f"{folder.name}.unpacking")
    try:
        unpacked.mkdir()
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            for member in members:
                _check_member(member, archive)
            filter_option: dict[str, str] = (
                {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            )
            tar.extractall(unpacked, members, **filter_option)  # type: ignore[arg-type]
        top_entries = list(unpacked.iterdir())
        if len(top_entries) != 1 or not top_entries[0].is_dir():
            raise ValueError(f"there are {len(top_entries)} files and folders at its top")
        top_entries[0].rename(folder)
    except _NO_ARCHIVE as e:
        raise FetchError(f"{archive.name}: not an archive with one folder in it ({e})") from e
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def _check_member(member: tarfile.TarInfo, archive: Path) -> None:
    parts = Path(member.name).parts
    if member.name.startswith("/") or ".." in parts:
        raise FetchError(
            f"{archive.name}: refused: its member '{member.name}' would land outside the "
            "data set's folder"
        )
    if not (member.isreg() or member.isdir()):
        raise FetchError(
            f"{archive.name}: refused: its member '{member.name}' is neither a file nor a folder"
        )


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
