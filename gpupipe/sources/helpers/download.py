"""Downloads the archive of a data set with pooch, checks its SHA-256, and unpacks it.

One process fetches a data set while others wait.

An archive is refused if the path of a member leads outside the folder of the data set.
"""

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
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpupipe.errors import DataError, FetchError
from gpupipe.runtime.file_locks import hold_lock
from gpupipe.runtime.files import cache_dir, create_folder_atomically
from gpupipe.runtime.installation import require_extra
from gpupipe.runtime.progress import Progress, ignore_progress

if TYPE_CHECKING:
    import requests

_CONNECT_SECONDS = 4.0
_READ_SECONDS = 8.0
_DAMAGED = (tarfile.TarError, EOFError, ValueError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


@dataclass(frozen=True)
class Dataset:
    """Describes a data set to download, as a tar archive of one folder: the data set's root.

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


def get_archive_path(dataset: Dataset) -> Path:
    """Return the path at which the archive of a data set is kept until it is unpacked."""
    return cache_dir() / "downloads" / f"{dataset.name}.tar"


def download(dataset: Dataset, progress: Progress) -> Path:
    """Download the archive of a data set to the cache folder, unless it is already there.

    Args:
        dataset: The data set to download.
        progress: Called with (text, done, total).

    Returns:
        The path of the archive.

    Raises:
        FetchError: The download fails, the archive has another SHA-256, or it cannot be stored.
        DataError: pooch is not installed.
    """
    require_extra("fetch", ("pooch",), f"downloading {dataset.name}", DataError)
    with warnings.catch_warnings():  # of tqdm, which looks for widgets in a notebook
        warnings.filterwarnings("ignore", "IProgress not found")
        import pooch
    import requests

    target = get_archive_path(dataset)
    if not target.is_file() or pooch.file_hash(str(target)) != dataset.sha256:
        _check_name_resolves(dataset.url)
    downloader = pooch.HTTPDownloader(
        progressbar=_PoochProgress(f"downloading {dataset.name}", progress),
        timeout=(_CONNECT_SECONDS, _READ_SECONDS),
    )
    pooch.get_logger().setLevel("ERROR")
    known_hash = f"sha256:{dataset.sha256}"
    try:
        pooch.retrieve(dataset.url, known_hash, target.name, target.parent, downloader=downloader)
    except requests.RequestException as e:
        raise FetchError(
            f"{dataset.name} cannot be downloaded from {dataset.url} ({_describe_error(e)})"
        ) from e
    except ValueError as e:
        raise FetchError(
            f"{dataset.name}: what {dataset.url} sent is not the data set (its SHA-256 differs)"
        ) from e
    except OSError as e:
        raise FetchError(
            f"{dataset.name} cannot be stored in {target.parent}: {e.strerror or e}"
        ) from e
    return target


def _describe_error(error: "requests.RequestException") -> str:
    import requests

    if error.response is not None:
        return f"HTTP {error.response.status_code} {error.response.reason}"
    return "no answer in time" if isinstance(error, requests.Timeout) else type(error).__name__


def _check_name_resolves(url: str) -> None:
    """Raise FetchError if the name of a URL's host is not resolved within 4 seconds.

    The time-outs of the HTTP library do not cover DNS.
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
    """Passes the progress of a download by pooch to a function, as pooch's progress bars do."""

    def __init__(self, activity: str, progress: Progress) -> None:
        self.activity, self.progress, self.total, self.done = activity, progress, 0, 0

    def update(self, count: int) -> None:
        self.done += count
        self.progress(self.activity, min(self.done, self.total or self.done), self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        """Do nothing: no resource is open."""


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive that holds one folder, and give this folder the path `folder`.

    Raises:
        FetchError: The archive is damaged, its top is not exactly one folder, the path of a member
            is absolute or contains "..", or a member is neither a file nor a folder.
    """
    unpacked = folder.with_name(f"{folder.name}.unpacking")
    try:
        unpacked.mkdir()
        with tarfile.open(archive) as tar:
            members = tar.getmembers()
            for member in members:
                _check_member(member, archive)
            if hasattr(tarfile, "data_filter"):
                tar.extraction_filter = tarfile.data_filter
            tar.extractall(unpacked, members)
        top_entries = list(unpacked.iterdir())
        if len(top_entries) != 1 or not top_entries[0].is_dir():
            raise ValueError(f"there are {len(top_entries)} files and folders at its top")
        top_entries[0].rename(folder)
    except _DAMAGED as e:
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


def fetch(dataset: Dataset, root: Path, progress: Progress = ignore_progress) -> None:
    """Download the archive of a data set, check its SHA-256 and unpack it to `root`.

    `root` appears complete or not at all. An existing `root` stays as it is.

    Args:
        dataset: The data set to download.
        root: The new folder.
        progress: Called with (text, done, total).

    Raises:
        FetchError: The download fails, the archive has another SHA-256, or the disk cannot be
            written. The message says how to download the archive by hand.
        DataError: pooch is not installed.
    """
    with hold_lock_of(root, progress):
        if root.is_dir():
            return
        try:
            fetch_unlocked(dataset, root, progress)
        except FetchError as e:
            raise FetchError(
                f"{e}. To do it by hand: download {dataset.url}, for instance on another machine, "
                f"and put it at {get_archive_path(dataset)}; its SHA-256 is {dataset.sha256}. Then "
                f"run the command again, which checks it and unpacks it to {root}"
            ) from e


def fetch_unlocked(dataset: Dataset, root: Path, progress: Progress) -> None:
    """Do what `fetch` does, but without taking the lock of `root`: the caller must hold it."""

    def fill(folder: Path) -> None:
        tar = download(dataset, progress)
        progress("unpacking", 0, None)
        unpack(tar, folder)
        tar.unlink(missing_ok=True)

    make_atomically(root, fill)


@contextlib.contextmanager
def hold_lock_of(root: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of the data set in `root` during a `with` block; wait for it if need be.

    So one process fetches the data set while others wait. If the cache folder cannot hold a lock,
    several processes may fetch, and the first to finish wins.
    """
    digest = hashlib.blake2b(os.fsencode(root.absolute()), digest_size=16)
    lock = cache_dir() / "locks" / digest.hexdigest()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            lock.parent.mkdir(parents=True, exist_ok=True)
            waiting = f"waiting for another process that fetches or makes {root.name}"
            stack.enter_context(hold_lock(lock, lambda: progress(waiting, 0, None)))
        yield


def make_atomically(root: Path, make: Callable[[Path], None]) -> None:
    """Let `make` fill a temporary folder, then rename that folder to `root`.

    If another process has made `root` meanwhile, that folder stays, and the new one is discarded.
    Raises FetchError if `root` cannot be written.
    """
    try:
        if os.path.lexists(root) and not root.is_dir():
            reason = "there is something in its place that is no folder"
            raise NotADirectoryError(errno.ENOTDIR, reason)
        with create_folder_atomically(root) as temporary:
            make(temporary)
    except OSError as e:
        raise FetchError(f"{root} cannot be written: {e.strerror or e}") from e
