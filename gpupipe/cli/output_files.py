"""Files that the commands write: whether they can be written is found out before anything is
measured.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from gpupipe.errors import GpupipeError

_PROBE_BYTES = 4096


class OutputFile(click.Path):
    """A file to be written; a usage mistake if that is not possible.

    Something is written where the file will be: permissions do not tell of a read-only or full file
    system.
    """

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            if path.is_file():
                os.close(os.open(path, os.O_WRONLY))
            elif not path.exists():  # pipes and devices are left alone
                _write_in(path.parent)
        except OSError as e:
            self.fail(f"{path} cannot be written: {_reason(e)}", param, ctx)
        return path


class PictureFile(OutputFile):
    """One whose name says in which format a picture is to be written."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from PIL import Image

        path = super().convert(value, param, ctx)
        if Image.registered_extensions().get(path.suffix.lower()) not in Image.SAVE:
            self.fail(
                f"'{path.suffix}' of {path} is no format of pictures: name it .png or .jpg",
                param,
                ctx,
            )
        return path


class OutputFolder(click.Path):
    """A folder to be made, or to be written to. A usage mistake if that is not possible."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            _write_in(next(p for p in (path, *path.absolute().parents) if p.exists()))
        except OSError as e:
            self.fail(f"{path} cannot be written to: {_reason(e)}", param, ctx)
        return path


def write_json(path: Path | None, found: dict[str, Any]) -> None:
    """Write results to a file, if one is named. Raises GpupipeError if that fails."""
    if path is not None:
        with writing(path):
            path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def write_all(*writes: Callable[[], None]) -> None:
    """Call each, also after one that failed. Raises GpupipeError with what all of them said."""
    failed = []
    for write in writes:
        try:
            write()
        except GpupipeError as e:
            failed.append(str(e))
    if failed:
        raise GpupipeError("; ".join(failed))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises GpupipeError, in one line, for an OSError inside."""
    try:
        yield
    except OSError as e:
        raise GpupipeError(f"{e.filename or path} cannot be written: {_reason(e)}") from e


def _write_in(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
