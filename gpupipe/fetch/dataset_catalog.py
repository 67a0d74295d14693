"""Data sets that gpupipe can fetch, and the stand-in for when it cannot."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import hashlib
import lzma
import os
import secrets
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
from gpupipe.runtime.cache_dir import cache_dir

if TYPE_CHECKING:
    import requests

_CONNECT_SECONDS = 4.0
_READ_SECONDS = 8.0
_NO_ARCHIVE = (tarfile.TarError, EOFError, ValueError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class Dataset:
    """A tar archive with one folder in it, which becomes the root of the data set."""

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
    """Where the data is, and what every output must say of it."""

    root: Path
    note: str


def known(name: str) -> str:
    """`name`, where it is a data set's; raises ValueError, with the nearest name, where it is
    not.
    """
    if name not in DATASETS:
        raise ValueError(f"unknown data set '{name}'{did_you_mean(name, DATASETS)}")
    return name


def present(
    root: Path, name: str | None, images: int | None, progress: Progress = quiet
) -> DatasetLocation:
    """The data at `root`: as it is there, else fetched, else made.

    A stand-in lies beside `root`, under another name, so that it is never taken for the data; once
    it is there no download is tried again. Raises DataError where there is nothing and nothing to
    do about it, FetchError where the download fails and no stand-in is asked for.
    """
    place = _there(root, images)
    if place:
        return place
    if name is None:
        raise DataError(
            f"{root}: no such folder: put the data there, or set data.root (for instance "
            "data.root=/path/to/images)"
        )
    with _alone(root, progress):
        return _there(root, images) or _fetched_or_made(root, name, images, progress)


def _there(root: Path, images: int | None) -> DatasetLocation | None:
    roots = [root, _stand_in_root(root, images)] if images else [root]
    return next((DatasetLocation(r, _note(r)) for r in roots if r.is_dir()), None)


def _fetched_or_made(
    root: Path, name: str, images: int | None, progress: Progress
) -> DatasetLocation:
    try:
        _fetch(DATASETS[name], root, progress)
        return DatasetLocation(root, "")
    except FetchError as e:
        if not images:
            raise
        made = _stand_in_root(root, images)
        progress(f"{e}; making a stand-in", 0, images)
        _make_whole(made, lambda folder: synthetic_faces.make(folder, images, progress))
        return DatasetLocation(made, _note(made))


def default_root(name: str) -> Path:
    """Where the shipped configs look for a data set: $GPUPIPE_DATA/NAME, else
    ~/.cache/gpupipe/NAME.
    """
    return Path(os.environ.get("GPUPIPE_DATA", "~/.cache/gpupipe")).expanduser() / name


def absent(root: Path, name: str | None, images: int | None) -> str:
    """What `present` would have to fetch or make first, or ""."""
    if name is None or _there(root, images):
        return ""
    return f"{name} is not here yet: the first run fetches it" + (
        f", or makes {images:,} stand-in images" if images else ""
    )


def _stand_in_root(root: Path, images: int) -> Path:
    return root.with_name(f"{root.name}-stand-in-{images}")


def _note(root: Path) -> str:
    return "stand-in data, not LFW" if synthetic_faces.is_stand_in(root) else ""


def fetch(dataset: Dataset, root: Path, progress: Progress = quiet) -> None:
    """Download the archive, check its SHA-256 and unpack it to `root`, which appears whole or not
    at all. Raises FetchError.
    """
    with _alone(root, progress):
        if not root.is_dir():
            _fetch(dataset, root, progress)


def _fetch(dataset: Dataset, root: Path, progress: Progress) -> None:
    def fill(folder: Path) -> None:
        archive = _download(dataset, progress)
        progress("unpacking", 0, None)
        unpack(archive, folder)
        archive.unlink(missing_ok=True)

    _make_whole(root, fill)


@contextlib.contextmanager
def _alone(root: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock on a data set: of several processes (the ranks of a machine), one fetches, and
    the others wait for it.

    Where the cache cannot hold a lock, each goes on; the first to end is then the one whose work is
    kept.
    """
    lock = (
        cache_dir()
        / "locks"
        / hashlib.blake2b(os.fsencode(root.absolute()), digest_size=16).hexdigest()
    )
    with contextlib.ExitStack() as stack:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(lock.open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(f"waiting for another process that fetches or makes {root.name}", 0, None)
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass
        yield


def _download(dataset: Dataset, progress: Progress) -> Path:
    import pooch
    import requests

    folder = cache_dir() / "downloads"
    _check_name_resolves(dataset.url)
    downloader = pooch.HTTPDownloader(
        progressbar=_Bar(f"downloading {dataset.name}", progress),
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
            f"{dataset.name} cannot be downloaded from {dataset.url} ({_why(e)})"
        ) from e
    except ValueError as e:
        raise FetchError(
            f"{dataset.name}: what {dataset.url} sent is not the data set (its SHA-256 differs)"
        ) from e
    except OSError as e:
        raise FetchError(f"{dataset.name} cannot be stored in {folder}: {e.strerror or e}") from e


def _why(error: requests.RequestException) -> str:
    import requests

    if error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    return "no answer in time" if isinstance(error, requests.Timeout) else type(error).__name__


def _check_name_resolves(url: str) -> None:
    """Give up soon where the name server does not answer, which no time-out of the HTTP library
    covers.
    """
    host = urllib.parse.urlsplit(url).hostname
    if host is None or urllib.request.getproxies():
        return
    done: list[str] = []

    def resolve() -> None:
        try:
            socket.getaddrinfo(host, None)
            done.append("")
        except OSError as e:
            done.append(e.strerror or str(e))

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(_CONNECT_SECONDS)
    if not done or done[0]:
        raise FetchError(
            f"{host} cannot be found ({done[0] if done else 'the name server does not answer'})"
        )


class _Bar:
    """What pooch calls while it downloads."""

    def __init__(self, what: str, progress: Progress) -> None:
        self.what, self.progress, self.total, self.done = what, progress, 0, 0

    def update(self, count: int) -> None:
        self.done += count
        self.progress(self.what, min(self.done, self.total or self.done), self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        """Nothing is held open."""


def unpack(archive: Path, folder: Path) -> None:
    """The one folder in a tar archive, as `folder`.

    Raises FetchError where a member would land outside it or is no plain file.
    """
    inside = folder.with_name(f"{folder.name}.unpacking")
    try:
        inside.mkdir()
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            for member in members:
                _check_member(member, archive)
            safely: dict[str, str] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(inside, members, **safely)  # type: ignore[arg-type]
        tops = list(inside.iterdir())
        if len(tops) != 1 or not tops[0].is_dir():
            raise ValueError(f"there are {len(tops)} files and folders at its top")
        tops[0].rename(folder)
    except _NO_ARCHIVE as e:
        raise FetchError(f"{archive.name}: not an archive with one folder in it ({e})") from e
    finally:
        shutil.rmtree(inside, ignore_errors=True)


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


def _make_whole(root: Path, make: Callable[[Path], None]) -> None:
    """Have `make` fill a folder, and show it under `root` only when it is whole; another process
    may have been first.
    """
    making = root.with_name(f".{root.name}.{secrets.token_hex(4)}")
    try:
        if os.path.lexists(root) and not root.is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR, "there is something in its place that is no folder"
            )
        making.mkdir(parents=True)
        make(making)
        try:
            making.rename(root)
        except OSError:
            if not root.is_dir():
                raise
    except OSError as e:
        raise FetchError(f"{root} cannot be written: {e.strerror or e}") from e
    finally:
        shutil.rmtree(making, ignore_errors=True)
