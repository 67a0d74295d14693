"""FunctionName: the type of settings that name a function of the user's."""

from typing import Annotated, Any

from pydantic import AfterValidator, PlainSerializer, WithJsonSchema

from gpupipe.runtime.user_functions import name_function
from gpupipe.schema.field_types import should_be


def is_name(value: Any) -> bool:
    """Return whether a value is "module:name" with an absolute module."""
    module, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    return bool(module and name) and not module.startswith(".")


def check_function(value: Any) -> Any:
    """Return a function, or "module:name"; raise a validation error for anything else."""
    if callable(value) or is_name(value):
        return value
    raise should_be("'module:function', such as my_steps:stamp")


FunctionName = Annotated[
    Any,
    AfterValidator(check_function),
    PlainSerializer(name_function, return_type=str),
    WithJsonSchema({"type": "string"}),
]
"""A function, as "module:function", or itself."""
