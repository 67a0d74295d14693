import random
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.runtime.function_failures import CallFailedError
from gpupipe.runtime.user_functions import (
    FunctionMissingError,
    describe,
    find_function,
    name_function,
)
from helpers import user_functions

IMAGE = torch.arange(48, dtype=torch.uint8).reshape(3, 4, 4)


def found(name: str, **args: Any) -> Any:
    return find_function(f"helpers.user_functions:{name}", args, None)


def test_the_seed_decides_the_draws() -> None:
    for name in ("stamp", "speckle"):
        function = found(name)
        first, again, other = (function(IMAGE.clone(), "image", seed) for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


def test_a_seed_of_53_bits_is_taken() -> None:
    highest = found("stamp")(IMAGE.clone(), "image", 2**53 - 1)
    assert not torch.equal(highest, found("stamp")(IMAGE.clone(), "image", 2**21 - 1))


def test_a_sample_has_the_name_of_its_field() -> None:
    function = found("Divide", by=2)
    assert function.takes_sample
    assert not function.takes_rng
    assert torch.equal(function(IMAGE, "left", 0), IMAGE // 2)


def test_no_gradients_are_computed() -> None:
    module = torch.nn.Conv2d(3, 2, 1)
    assert not find_function(module, {}, None)(IMAGE.float(), "image", 0).requires_grad


def test_names_are_the_same_in_every_process() -> None:
    assert name_function("a.b:c") == "a.b:c"
    assert name_function(user_functions.Divide) == "helpers.user_functions:Divide"
    assert name_function(torch.nn.ReLU()) == "torch.nn.modules.activation:ReLU ReLU()"
    of_partial = name_function(partial(user_functions.stamp, strength=0.1))
    assert "strength=0.1" in of_partial
    assert "0x" not in of_partial


def test_where_code_is() -> None:
    file = user_functions.__file__
    assert describe(user_functions.stamp).startswith(f"stamp ({file}:")
    assert describe(user_functions.Divide(by=2)).startswith(f"Divide ({file}:")
    assert describe(random.random).endswith(":Random.random")
    function = found("refuse_dark")
    with pytest.raises(LookupError) as caught:
        function(IMAGE, "image", 0)
    lines = Path(file).read_text().splitlines()
    line = function.find_line(traceback.extract_tb(caught.value.__traceback__))
    assert "raise LookupError" in lines[int(line.split(":")[-1]) - 1]
    assert function.find_line(traceback.StackSummary()) == ""


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(CallFailedError, match=r"a ndarray, .*: write torch\.from_numpy"):
        found("to_array")(IMAGE, "image", 0)


def test_the_module_beside_the_file_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, by in (("beside", 2), ("on_path", 3)):
        (tmp_path / folder).mkdir()
        text = f"from other_beside import BY\ndef divide(image):\n    return image // {by} * BY\n"
        (tmp_path / folder / "my_divide.py").write_text(text)
        (tmp_path / folder / "other_beside.py").write_text("BY = 1\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "on_path")])
    divide = find_function("my_divide:divide", {}, tmp_path / "beside")
    assert torch.equal(divide(IMAGE, "image", 0), IMAGE // 2)
    with pytest.raises(FunctionMissingError, match=r"my_divide is imported from .*beside"):
        find_function("my_divide:divide", {}, tmp_path / "on_path")


def test_a_module_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "my_broken.py").write_text("import no_such_module_of_mine\n")
    with pytest.raises(FunctionMissingError, match=r"my_broken .*no_such_module_of_mine"):
        find_function("my_broken:f", {}, tmp_path)


def test_arguments_that_do_not_fit() -> None:
    assert "'by'" in find_function(lambda image, by: image, {}, None).explain_misfit()
    assert found("stamp", strength=1).explain_misfit() == ""
    assert find_function(torch.flip, {"dims": [0]}, None).explain_misfit() == ""


def test_numpys_generator_by_annotation() -> None:
    kinds: list[type] = []

    def of_text(image: Any, rng: np.random.Generator) -> Any:
        kinds.append(type(rng))
        return image

    def of_torch(image: Any, rng: Any) -> Any:
        kinds.append(type(rng))
        return image

    for function in (of_text, of_torch):
        find_function(function, {}, None)(IMAGE, "image", 0)
    assert kinds == [np.random.Generator, torch.Generator]
