from typing import Any

import pydantic
import pytest

from gpupipe.schema.function_name import FunctionName, check_function

NAMES = pydantic.TypeAdapter(FunctionName)


@pytest.mark.parametrize("value", ["my_steps:stamp", "a.b:C.d", len, lambda image: image])
def test_names_and_functions(value: Any) -> None:
    assert check_function(value) is value
    assert isinstance(NAMES.dump_python(value), str)


@pytest.mark.parametrize("value", ["stamp", ":stamp", "my_steps:", ".steps:stamp", 3, None])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(pydantic.ValidationError, match="'module:function', such as"):
        NAMES.validate_python(value)
    assert NAMES.json_schema() == {"type": "string"}
