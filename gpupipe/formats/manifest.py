"""Read manifests: .txt, .csv, .tsv and .parquet files with one row per sample.

A fault raises DataError with FILE:LINE. The sources of local files and the cache of a remote data
set all read their manifests here.
"""

from __future__ import annotations

import io
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from gpupipe.formats.manifest_parquet import read_parquet
from gpupipe.formats.manifest_rows import ManifestColumns, ManifestRows, Tick
from gpupipe.formats.manifest_table import DELIMITERS, read_table
from gpupipe.formats.manifest_text import read_text
from gpupipe.runtime.regular_file import open_regular

SUFFIXES = (".txt", *DELIMITERS, ".parquet")


def get_suffix(file: Path | str) -> str:
    """Return the suffix of a path or URL in lower case, such as ".csv". It decides the format."""
    return PurePosixPath(file).suffix.lower()


def read(file: Path, wanted: ManifestColumns, tick: Tick) -> ManifestRows:
    """Read columns of a manifest.

    Args:
        file: The manifest, whose suffix decides the format.
        wanted: The columns to read.
        tick: Called now and then with the number of rows read.

    Raises:
        DataError: A row or column is missing or wrong.
        OSError: The file cannot be read.
    """
    with open_regular(file) as f:
        # Paths of files may hold bytes that are not UTF-8.
        return read_stream(str(file), f, wanted, tick, "surrogateescape")


def read_stream(
    name: str, f: BinaryIO, wanted: ManifestColumns, tick: Tick, encoding_errors: str = "strict"
) -> ManifestRows:
    """Read columns of a manifest from an open file.

    Args:
        name: Its path or URL, for messages. The suffix decides the format.
        f: The manifest, open for reading.
        wanted: The columns to read.
        tick: Called now and then with the number of rows read.
        encoding_errors: What to do about bytes that are not UTF-8: "strict" or "surrogateescape".

    Raises:
        DataError: A row or column is missing or wrong.
        OSError: The file cannot be read.
    """
    suffix = get_suffix(name)
    if suffix == ".parquet":
        return read_parquet(name, f, wanted)
    newline = "" if suffix in DELIMITERS else "\n"
    with io.TextIOWrapper(f, "utf-8-sig", encoding_errors, newline) as text:
        if suffix in DELIMITERS:
            return read_table(name, suffix, text, wanted, tick)
        return read_text(name, text, wanted, tick)
