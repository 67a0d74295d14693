from pathlib import Path
from typing import Any

import pytest

from gpupipe.config import LoaderConfig
from gpupipe.config.collate_call import CollateCall, collate
from gpupipe.errors import ConfigError, EngineError, StepError


def refuse(samples: list[dict[str, Any]]) -> Any:
    raise LookupError(f"no {samples[0]['name']}")


def exhaust(samples: list[dict[str, Any]]) -> Any:
    raise MemoryError


class Count:
    def __call__(self, samples: list[dict[str, Any]]) -> int:
        return len(samples)


def test_a_module_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "collate_beside.py").write_text("def count(samples):\n    return len(samples)\n")
    function = CollateCall("collate_beside:count", tmp_path).find()
    assert collate(function, [{}, {}]) == 2
    with pytest.raises(ConfigError, match=r"loader\.collate: .* has no 'coun'"):
        CollateCall("collate_beside:coun", tmp_path).find()


@pytest.mark.parametrize("call", [Count, Count(), len], ids=["class", "object", "builtin"])
def test_a_class_an_object_and_a_builtin(call: Any) -> None:
    assert collate(CollateCall(call, None).find(), [{}, {}, {}]) == 3


def test_an_exception_names_the_function_and_its_line() -> None:
    function = CollateCall(refuse, None).find()
    with pytest.raises(StepError, match=r"loader\.collate: refuse \(.*LookupError: no cat") as e:
        collate(function, [{"name": "cat"}])
    assert "test_collate_call.py:" in str(e.value)
    assert "raise LookupError" in e.value.traceback


def test_a_machine_without_memory_is_no_fault_of_the_function() -> None:
    with pytest.raises(EngineError):
        collate(CollateCall(exhaust, None).find(), [{}])


def test_settings() -> None:
    loader = LoaderConfig.model_validate({"collate": refuse})
    name = loader.model_dump(mode="json")["collate"]
    assert name.endswith("test_collate_call:refuse")
    again = LoaderConfig.model_validate({"collate": name})
    assert again.collate.find().function is refuse
    with pytest.raises(ValueError, match="'module:function'"):
        LoaderConfig.model_validate({"collate": "refuse"})
    with pytest.raises(ValueError, match="leave one of them out"):
        LoaderConfig.model_validate({"collate": refuse, "format": "tuple"})
