"""Option types for files that the commands write.

They try to write before anything is measured, so that no measurement is lost.
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
    """A file to write; a usage mistake if that is not possible.

    The check writes to the file's folder: permissions do not reveal a read-only or full file
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
    """A picture to write, in the format that its suffix names."""

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
    """A folder to create or to write to; a usage mistake if that is not possible."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            _write_in(next(p for p in (path, *path.absolute().parents) if p.exists()))
        except OSError as e:
            self.fail(f"{path} cannot be written to: {_reason(e)}", param, ctx)
        return path


def write_json(path: Path | None, content: dict[str, Any]) -> None:
    """Write results to `path`, unless it is None; raise GpupipeError if that fails."""
    if path is not None:
        with writing(path):
            path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_all(*writes: Callable[[], None]) -> None:
    """Call each function, even after one fails; raise GpupipeError with all their messages."""
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
    """Turn an OSError inside the context into a GpupipeError of one line."""
    try:
        yield
    except OSError as e:
        raise GpupipeError(f"{e.filename or path} cannot be written: {_reason(e)}") from e


def _write_in(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
