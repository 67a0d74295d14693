"""FunctionName: the type of settings that name a function of the user's."""

from typing import Annotated, Any

from pydantic import AfterValidator, PlainSerializer, WithJsonSchema

from gpupipe.runtime.user_functions import name_function
from gpupipe.schema.field_types import should_be


def check_function(value: Any) -> Any:
    """Return a function, or "module:name"; raise a validation error for anything else."""
    if callable(value):
        return value
    module, _, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not module or not name or module.startswith("."):
        raise should_be("'module:function', such as my_steps:stamp")
    return value


FunctionName = Annotated[
    Any,
    AfterValidator(check_function),
    PlainSerializer(name_function, return_type=str),
    WithJsonSchema({"type": "string"}),
]
"""A function, as "module:function", or itself."""
