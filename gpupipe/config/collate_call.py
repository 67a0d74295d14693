"""CollateCall: the function of the user's that `loader.collate` names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import AfterValidator, PlainSerializer, WithJsonSchema

from gpupipe.errors import ConfigError, EngineError, StepError
from gpupipe.runtime.function_failures import explain_failure
from gpupipe.runtime.user_functions import (
    FunctionMissingError,
    UserFunction,
    find_function,
    name_function,
)
from gpupipe.schema.function_name import check_function


@dataclass(frozen=True)
class CollateCall:
    """A collate function, and where its module may lie.

    Attributes:
        call: "module:function", or the function itself.
        folder: The folder of the config file; None: Python's path alone.
    """

    call: Any
    folder: Path | None

    def find(self) -> UserFunction:
        """Import the function. A class is constructed, and its object is called.

        Raises:
            ConfigError: There is no such function.
        """
        try:
            return find_function(self.call, {}, self.folder)
        except FunctionMissingError as e:
            raise ConfigError.at("loader.collate", str(e)) from e


def collate(function: UserFunction, samples: list[dict[str, Any]]) -> Any:
    """Return what a collate function makes of samples.

    Raises:
        StepError: The function raises.
        EngineError: The machine is at fault, such as for lack of memory.
    """
    try:
        return function.function(samples)
    except Exception as e:
        failure = explain_failure(e, function.find_line)
        if failure.machine:
            raise EngineError(failure.machine) from e
        raise StepError(f"loader.collate: {function.name} {failure.reason}", failure.text) from e


def _read(value: Any, info: pydantic.ValidationInfo) -> Any:
    if value is None or isinstance(value, CollateCall):
        return value
    return CollateCall(check_function(value), (info.context or {}).get("folder"))


def _name(value: CollateCall | None) -> str | None:
    return None if value is None else name_function(value.call)


Collate = Annotated[
    Any,
    AfterValidator(_read),
    PlainSerializer(_name),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "null"}]}),
]
"""The type of `loader.collate`: null, or a CollateCall."""
