"""Unpacks the tar archives of data sets, and refuses members that lie outside their folder."""

from __future__ import annotations

import gzip
import lzma
import shutil
import tarfile
import zlib
from pathlib import Path

from gpupipe.errors import FetchError

_DAMAGED = (tarfile.TarError, EOFError, ValueError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


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
