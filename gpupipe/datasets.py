"""Data sets that gpupipe can fetch, and the stand-in for when it cannot."""

from __future__ import annotations

import os
import shutil
import socket
import tarfile
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpupipe import stand_in
from gpupipe.cachedir import cache_dir
from gpupipe.errors import DataError, FetchError, did_you_mean
from gpupipe.source import Progress, quiet

_CONNECT_SECONDS = 4.0
_READ_SECONDS = 8.0


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
class Place:
    """Where the data is, and what every output must say of it."""

    root: Path
    note: str


def known(name: str) -> str:
    """`name`, where it is a data set's; raises ValueError, with the nearest name, where it is not."""
    if name not in DATASETS:
        raise ValueError(f"unknown data set '{name}'{did_you_mean(name, DATASETS)}")
    return name


def present(root: Path, name: str | None, images: int | None, progress: Progress = quiet) -> Place:
    """The data at `root`: as it is there, else fetched, else made.

    A stand-in lies beside `root`, under another name, so that it is never taken for the data; once it is there no download is tried
    again. Raises DataError where there is nothing and nothing to do about it, FetchError where the download fails and no stand-in is asked for.
    """
    if root.is_dir():
        return Place(root, _note(root, name))
    if name is None:
        raise DataError(f"{root}: no such folder: put the data there, or set data.root (for instance data.root=/path/to/images)")
    made = _stand_in_root(root, images or 0)
    if images and made.is_dir():
        return Place(made, _note(made, name))
    try:
        fetch(DATASETS[name], root, progress)
        return Place(root, "")
    except FetchError as e:
        if not images:
            raise
        progress(f"{e}; making a stand-in", 0, images)
        _make_whole(made, lambda folder: stand_in.make(folder, images, progress))
        return Place(made, _note(made, name))


def default_root(name: str) -> Path:
    """Where the shipped configs look for a data set: $GPUPIPE_DATA/NAME, else ~/.cache/gpupipe/NAME."""
    return Path(os.environ.get("GPUPIPE_DATA", "~/.cache/gpupipe")).expanduser() / name


def absent(root: Path, name: str | None, images: int | None) -> str:
    """What `present` would have to fetch or make first, or ""."""
    if name is None or root.is_dir() or (images and _stand_in_root(root, images).is_dir()):
        return ""
    return f"{name} is not here yet: the first run fetches it" + (f", or makes {images:,} stand-in images" if images else "")


def _stand_in_root(root: Path, images: int) -> Path:
    return root.with_name(f"{root.name}-stand-in-{images}")


def _note(root: Path, name: str | None) -> str:
    return f"stand-in data, not {(name or 'real data').upper()}" if stand_in.is_stand_in(root) else ""


def fetch(dataset: Dataset, root: Path, progress: Progress = quiet) -> None:
    """Download the archive, check its SHA-256 and unpack it to `root`, which appears whole or not at all. Raises FetchError."""
    archive = _download(dataset, progress)
    progress("unpacking", 0, None)
    _make_whole(root, lambda folder: unpack(archive, folder))
    archive.unlink()


def _download(dataset: Dataset, progress: Progress) -> Path:
    import pooch
    import requests

    folder = cache_dir() / "downloads"
    _check_name_resolves(dataset.url)
    downloader = pooch.HTTPDownloader(progressbar=_Bar(f"downloading {dataset.name}", progress), timeout=(_CONNECT_SECONDS, _READ_SECONDS))
    pooch.get_logger().setLevel("ERROR")
    try:
        return Path(pooch.retrieve(dataset.url, f"sha256:{dataset.sha256}", f"{dataset.name}.tar", folder, downloader=downloader))
    except requests.RequestException as e:
        raise FetchError(f"{dataset.name} cannot be downloaded from {dataset.url} ({type(e).__name__})") from e
    except ValueError as e:
        raise FetchError(f"{dataset.name}: what {dataset.url} sent is not the data set (its SHA-256 differs)") from e
    except OSError as e:
        raise FetchError(f"{dataset.name} cannot be stored in {folder}: {e.strerror or e}") from e


def _check_name_resolves(url: str) -> None:
    """Give up soon where the name server does not answer, which no time-out of the HTTP library covers."""
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
        raise FetchError(f"{host} cannot be found ({done[0] if done else 'the name server does not answer'})")


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
    """The one folder in a tar archive, as `folder`. Raises FetchError where a member would land outside it or is no plain file."""
    inside = folder.with_name(f"{folder.name}.unpacking")
    try:
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            for member in members:
                _check_member(member, archive)
            tar.extractall(inside, members, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # type: ignore[arg-type]
        (top,) = inside.iterdir()
        top.rename(folder)
    except (tarfile.TarError, EOFError, ValueError) as e:
        raise FetchError(f"{archive.name}: not an archive with one folder in it ({e})") from e
    finally:
        shutil.rmtree(inside, ignore_errors=True)


def _check_member(member: tarfile.TarInfo, archive: Path) -> None:
    parts = Path(member.name).parts
    if member.name.startswith("/") or ".." in parts:
        raise FetchError(f"{archive.name}: refused: its member '{member.name}' would land outside the data set's folder")
    if not (member.isreg() or member.isdir()):
        raise FetchError(f"{archive.name}: refused: its member '{member.name}' is neither a file nor a folder")


def _make_whole(root: Path, make: Callable[[Path], None]) -> None:
    """Have `make` fill a folder, and show it under `root` only when it is whole; another process may have been first."""
    making = root.with_name(f".{root.name}.{os.getpid()}")
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
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
