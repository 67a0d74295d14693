"""Where a data set of the user's comes from, and what to say if its code raises."""

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpupipe.dataset.given_dataset import GivenDataset
from gpupipe.errors import DataError
from gpupipe.runtime.function_failures import explain_failure
from gpupipe.runtime.user_functions import FunctionMissingError, import_object
from gpupipe.sources.helpers.known_datasets import leave_encoded


@dataclass(frozen=True)
class DatasetOrigin:
    """Where a data set comes from.

    Attributes:
        call: "module:name" of a class or function that returns it, or the data set itself.
        args: Keyword arguments of the class or function.
        folder: The folder in which the module may lie; None: Python's path alone.
    """

    call: str | GivenDataset
    args: dict[str, Any]
    folder: Path | None

    @property
    def name(self) -> str:
        """The name of the data set, for messages and the fingerprint."""
        return self.call if isinstance(self.call, str) else self.call.name

    def open(self) -> Any:
        """Return the data set. Raises DataError if it cannot be imported or constructed."""
        return leave_encoded(self._create())

    def _create(self) -> Any:
        if isinstance(self.call, GivenDataset):
            return self.call.dataset
        try:
            make = import_object(self.call, self.folder)
        except FunctionMissingError as e:
            raise DataError(f"data.call: {e}") from e
        if not callable(make):
            return make
        try:
            return make(**self.args)
        except Exception as e:  # whatever the code of the user raises
            raise DataError(f"data.call: {self.call} {explain_call(e, make)}") from e


def explain_call(error: BaseException, origin: Any) -> str:
    """Return "raised ERROR at FILE:LINE", with the innermost line of the user's code.

    It is in the module of the data set's class, or else where the error was raised.
    """
    module = str(getattr(origin, "__module__", type(origin).__module__)).rpartition(".")[2]

    def find_line(stack: traceback.StackSummary) -> str:
        frames = stack[1:]
        own = [f for f in frames if Path(f.filename).stem == module]
        frame = (own or frames)[-1] if frames else None
        return f" at {frame.filename}:{frame.lineno}" if frame is not None else ""

    return explain_failure(error, find_line).reason
