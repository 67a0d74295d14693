import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.config import read
from gpupipe.engines.ray.engine import RayEngine
from gpupipe.errors import EngineError
from gpupipe.pipeline.user_calls import explain_nameless, hash_functions, list_calls
from helpers import user_functions


def pipeline(*steps: Any) -> Any:
    data = {"source": "folder", "root": "anywhere"}
    return read({"data": data, "pipeline": ["decode", *steps]}).pipeline


NAMED = {"python": {"call": "helpers.user_functions:stamp"}}


def test_functions_in_containers_are_listed() -> None:
    nested = {"random_apply": {"transforms": [{"python": {"call": "helpers.user_functions:trim"}}]}}
    calls = list_calls(pipeline(NAMED, nested, "random_horizontal_flip"))
    assert [call.name.partition(":")[2] for call in calls] == ["stamp", "trim"]


def test_objects_are_found_by_no_other_process() -> None:
    assert explain_nameless(pipeline(NAMED)) == ""
    for call in (user_functions.stamp, lambda image: image):
        assert "pipeline.1" in explain_nameless(pipeline(call))
        assert "define it in a module" in explain_nameless(pipeline(NAMED, call))


def test_ray_refuses_an_object_before_it_starts(faces: Path) -> None:
    data = {"source": "folder", "root": str(faces)}
    config = {"data": data, "pipeline": ["decode", {"center_crop": {"size": 8}}, lambda x: x]}
    with pytest.raises(EngineError, match=r"pipeline\.2.*<lambda> .*'module:function'"):
        gpupipe.load(config, engine="ray", ray={"workers": 1, "cpus": 1}, device="cpu")
    assert RayEngine.name == "ray"


def test_a_resume_with_another_text_warns(
    faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, config = tmp_path / "steps_that_change.py", tmp_path / "train.json"
    file.write_text("def dim(image):\n    return image // 2\n")
    steps = ["decode", {"center_crop": {"size": 8}}, {"python": {"call": "steps_that_change:dim"}}]
    data = {"source": "folder", "root": str(faces)}
    config.write_text(json.dumps({"data": data, "pipeline": steps}))
    with gpupipe.load(config, device="cpu", batch_size=4) as loader:
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
    (name,) = state["functions"]
    assert name == "steps_that_change:dim"
    with gpupipe.load(config, device="cpu", batch_size=4) as loader:
        loader.load_state_dict(state)  # warnings are errors
    state["functions"][name] = "0" * 16
    with gpupipe.load(config, device="cpu", batch_size=4) as loader:
        with pytest.warns(UserWarning, match="text of steps_that_change:dim has changed"):
            loader.load_state_dict(state)
        loader.load_state_dict({**state, "functions": {}})


def test_the_hash_is_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = set()
    monkeypatch.syspath_prepend(tmp_path)
    for by in (2, 3):
        folder = tmp_path / str(by)
        folder.mkdir()
        (folder / f"steps_by_{by}.py").write_text(f"def dim(image):\n    return image // {by}\n")
        monkeypatch.syspath_prepend(folder)
        importlib.invalidate_caches()
        found = hash_functions(pipeline({"python": {"call": f"steps_by_{by}:dim"}}))
        hashes.add(found[f"steps_by_{by}:dim"])
        again = hash_functions(pipeline({"python": {"call": f"steps_by_{by}:dim"}}))
        assert again == found
        sys.modules.pop(f"steps_by_{by}")
    assert len(hashes) == 2
    with warnings.catch_warnings():
        assert hash_functions(pipeline({"python": {"call": "torch:neg"}})) == {}
