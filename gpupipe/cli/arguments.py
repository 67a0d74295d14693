"""Arguments of the commands: options from signatures, CONFIG, KEY=VALUE, and files to write.

OutputFile, PictureFile and OutputFolder try a write while click parses the command line. A file
that cannot be written therefore stops the command before it measures anything.
"""

import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import click

from gpupipe.cli.catalog import complete_config, complete_override
from gpupipe.errors import GpupipeError

_Command = TypeVar("_Command", bound=Callable[..., Any])
_PROBE_BYTES = 4096
_STDOUT, _STDOUT_KEY = Path("-"), "gpupipe.stdout"


class OutputFile(click.Path):
    """The type of a file to write; reports a usage error if the file cannot be written.

    The check writes to the file's folder: permissions do not reveal a read-only or full file
    system.
    """

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            self.try_to_write(path)
        except OSError as e:
            self.fail(f"{path} cannot be written: {_reason(e)}", param, ctx)
        return path

    def try_to_write(self, path: Path) -> None:
        """Raise OSError if the file cannot be written. Pipes and devices are left alone."""
        if path.is_file():
            os.close(os.open(path, os.O_WRONLY))
        elif not path.exists():
            _write_in(path.parent)


class PictureFile(OutputFile):
    """The type of a picture to write; reports a usage error if Pillow cannot write its suffix."""

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


class OutputFolder(OutputFile):
    """The type of a folder to write to or create; reports a usage error if that is impossible."""

    def __init__(self) -> None:
        click.Path.__init__(self, file_okay=False, path_type=Path)

    def try_to_write(self, path: Path) -> None:
        _write_in(next(p for p in (path, *path.absolute().parents) if p.exists()))


class ResultsFile(OutputFile):
    """The type of a file of results. The name - stands for standard output.

    Standard output then has the results alone: what the command prints goes to standard error.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if os.fspath(value) != os.fspath(_STDOUT) or ctx is None:
            return super().convert(value, param, ctx)
        ctx.meta[_STDOUT_KEY] = sys.stdout
        ctx.with_resource(redirect_stdout(sys.stderr))
        return _STDOUT


class ByteCount(click.ParamType):  # type: ignore[type-arg]  # click 8.1 takes none
    """The type of a size in bytes, such as 100GB."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from pydantic import ByteSize, TypeAdapter, ValidationError

        try:
            size = int(TypeAdapter(ByteSize).validate_python(value))
        except ValidationError:
            self.fail(f"{value!r} is no size, such as 100GB", param, ctx)
        return size


def write_json(path: Path | None, content: dict[str, Any] | list[Any]) -> None:
    """Write results to `path`, a ResultsFile, unless it is None.

    Raises:
        GpupipeError: The file cannot be written.
    """
    if path is None:
        return
    text = json.dumps(content, indent=2)
    if path == _STDOUT:
        click.echo(text, file=click.get_current_context().meta[_STDOUT_KEY])
        return
    with writing(path):
        path.write_text(text + "\n", encoding="utf-8")


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
    """Turn an OSError inside the context into a GpupipeError whose message names the file.

    A file that is new, and was not written whole, is removed.
    """
    is_new = False
    try:
        is_new = not path.exists()
        yield
    except OSError as e:
        if is_new:
            with suppress(OSError):  # a folder, or a file that is not there
                path.unlink()
        raise GpupipeError(f"{e.filename or path} cannot be written: {_reason(e)}") from e


def _write_in(folder: Path) -> None:
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(_PROBE_BYTES))


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


# --- options

ConfigName = Annotated[str, click.argument("config", shell_complete=complete_config)]
Overrides = Annotated[
    tuple[str, ...],
    click.argument(
        "overrides", nargs=-1, metavar="[KEY=VALUE]...", shell_complete=complete_override
    ),
]
JsonFile = Annotated[
    Path | None,
    "--json",
    ResultsFile(),
    "Write all results to this file as JSON; with -, print them: the rest goes to stderr.",
]


def options(command: _Command) -> _Command:
    """Turn the annotated parameters of a command into its options, as `options_of` explains."""
    return options_of(command)(command)


def options_of(model: Callable[..., Any]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds to a command one option per annotated parameter of `model`.

    Modules with many options avoid `from __future__ import annotations`: annotations would be
    strings, and compiling them takes 4 ms at each start.

    Args:
        model: A function or a dataclass. Each of its parameters with an annotation
            `Annotated[type, ...]` becomes an option. The annotation has these parts:

            - the help text, the last string;
            - names, such as "-q" or "--json". Without a name that begins with "--", the parameter
              `max_diff` becomes the option --max-diff;
            - a name of the value for the help, in capitals, such as "SETTING". With "FILE", a path
              that is a folder is a usage error; with "DIRECTORY", a path that is a file;
            - a click type or a `range`, if the parameter's type allows too many values;
            - or a click decorator, in place of all these.

            The command line may repeat an option of type `tuple`.

    Examples:
        >>> @click.command()
        ... @options
        ... def tune(config: ConfigName, rounds: Annotated[int, IntRange(1), "Rounds."] = 3): ...
    """
    hints = inspect.get_annotations(model, eval_str=True)
    decorators = [
        _decorator(name, hints[name], parameter.default)
        for name, parameter in inspect.signature(model).parameters.items()
        if hasattr(hints[name], "__metadata__")
    ]

    def decorate(command: _Command) -> _Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def _decorator(name: str, annotation: Any, default: Any) -> Callable[[_Command], _Command]:
    """Return the click decorator that declares one parameter as an option or argument."""
    kind, *metadata = get_args(annotation)
    if callable(metadata[0]) and not isinstance(metadata[0], click.ParamType):
        return metadata[0]  # type: ignore[no-any-return]
    *texts, text = [part for part in metadata if isinstance(part, str)]
    names = [part for part in texts if part.startswith("-")]
    metavar = next((part for part in texts if part not in names), None)
    if not any(part.startswith("--") for part in names):
        names.append(f"--{name.replace('_', '-')}")
    if kind is bool:
        return click.option(*names, name, is_flag=True, help=text)
    required = default is inspect.Parameter.empty
    return click.option(
        *names,
        name,
        type=_find_type(kind, metadata),
        metavar=metavar or _find_metavar(kind),
        multiple=get_origin(kind) is tuple,
        help=text,
        show_default=default != "",
        **{"required": True} if required else {"default": default},
    )


def _find_metavar(kind: Any) -> str | None:
    """Return N for a whole number and NUMBER for another; None for what click names well."""
    kinds = (kind, *get_args(kind))
    if get_origin(kind) is Literal:
        return None
    return "N" if int in kinds else "NUMBER" if float in kinds else None


def _find_type(kind: Any, metadata: list[Any]) -> Any:
    """Return click's type for a parameter, from the metadata or from the parameter's own type."""
    for part in metadata:
        if isinstance(part, click.ParamType):
            return part
        if isinstance(part, range):  # of settings that the command line shares with the library
            return click.IntRange(part.start, part.stop - 1)
    kinds = (kind, *get_args(kind))
    for part in kinds:
        if get_origin(part) is Literal:
            return click.Choice(get_args(part))
    if Path in kinds:
        is_file, is_folder = "FILE" in metadata, "DIRECTORY" in metadata
        return click.Path(dir_okay=not is_file, file_okay=not is_folder, path_type=Path)
    return kind if isinstance(kind, type) else str
