import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpupipe import config
from gpupipe.batch_stage.batch_step import BATCH_STEPS
from gpupipe.config.json_schema import KINDS, make_schema
from gpupipe.config.loader_config import LoaderConfig
from gpupipe.dataset import source
from gpupipe.errors import ConfigError
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.schema import yaml_files
from helpers import plugin

SHIPPED = [
    (kind, path)
    for kind in KINDS
    for path in sorted(yaml_files.folder(f"{kind}s").glob("*.yaml"))  # type: ignore[arg-type]
]


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    made = {kind: make_schema(kind) for kind in KINDS}
    for schema in made.values():
        jsonschema.Draft7Validator.check_schema(schema)
    return made


def mistakes(schema: dict[str, Any], data: Any) -> list[str]:
    errors = jsonschema.Draft7Validator(schema).iter_errors(data)
    return [f"{'.'.join(map(str, e.path))}: {e.message[:80]}" for e in errors]


def parsed(text: str) -> Any:
    return yaml_files.parse(text, "text").data


@pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=lambda value: getattr(value, "stem", value))
def test_every_shipped_file_validates_and_names_its_schema(
    schemas: dict[str, Any], kind: str, path: Path
) -> None:
    assert mistakes(schemas[kind], yaml_files.read(path).data) == []
    line = f"# yaml-language-server: $schema=../schemas/{kind}.json\n"
    assert line in path.read_text()


STEPS_THAT_ARE_TAKEN = """
- decode
- decode:
- resize: {size: 224}
- resize: {size: [224, 200], antialias: false}
- random_crop: {size: 3, padding: [1, 2], fill: {image: 0, mask: [255]}, on: [image, mask]}
- random_affine: {degrees: 5, translate: [0.1, 0.1], shear: 3, fill: [1, 2, 3]}
- random_affine: {degrees: [-5, 6], shear: [1, 2, 3, 4], center: null}
- color_jitter: {brightness: 0.4, hue: [-0.1, 0.1]}
- gaussian_blur: {kernel_size: 3, sigma: 1}
- normalize: {mean: 0.5, std: [0.2, 0.2, 0.2]}
- random_erasing: {value: random}
- random_horizontal_flip: {p: {value: 0.5, until: 60, then: 0.1}}
- random_resized_crop: {size: {from: 128, to: 224, epochs: [0, 30]}}
- random_choice: {p: [1, 2], transforms: [random_invert, {random_apply: {transforms: [identity]}}]}
- linear_transformation: {transformation_matrix: zca.npy, mean_vector: [0, 1]}
- dali: {op: water, ampl_x: 4, interp_type: INTERP_LINEAR, mask: {flip: 0.5}}
- timm_augment: {policy: rand-m7}
- center_crop: {size: "${oc.env:SIZE}"}
"""


def test_short_forms_schedules_and_interpolations_validate(schemas: dict[str, Any]) -> None:
    for item in parsed(STEPS_THAT_ARE_TAKEN):
        assert mistakes(schemas["pipeline"], [item]) == [], item


LOADERS_THAT_ARE_TAKEN = [
    {"device": "gpu:1", "threads": "auto", "gpu_memory": "2GB", "dtype": None},
    {"shard": "auto", "subset": 0.1, "epoch_size": "all"},
    {"shard": {"rank": 0, "world_size": 2}, "subset": "val", "split": {"train": 0.9, "val": 0.1}},
    {"server": "tcp://host:1", "engine": "remote", "gpu_memory": 5_000_000},
    {"server": ["tcp://host:1", "ipc://x"], "batch_size": "${oc.env:SIZE}", "shuffle": "${x}"},
]


@pytest.mark.parametrize("loader", LOADERS_THAT_ARE_TAKEN, ids=str)
def test_loader_settings_that_validate(schemas: dict[str, Any], loader: dict[str, Any]) -> None:
    data = {"data": {"source": "folder", "root": "x"}, "pipeline": "affine", "loader": loader}
    assert mistakes(schemas["config"], data) == []
    if "${" not in str(loader):
        LoaderConfig.model_validate(loader)


RIGHT = {"data": {"source": "folder", "root": "x"}, "pipeline": ["decode"]}
WRONG = [
    # docs/configuration.md, "Errors in a config"
    {"data": {"source": "folder", "root": "x", "extension": "jpg"}},
    {"pipeline": ["decode", {"random_afine": {"degrees": 5}}]},
    {"loader": {"batch_size": "many"}},
    # docs/configuration.md and docs/plugins.md: names that are no steps
    {"pipeline": ["decode", "to_tensor"]},
    {"pipeline": ["decode", {"mixup": {"alpha": 0.2}}]},
    {"batch": [{"random_crop": {"size": 3}}]},
    # docs/training.md and docs/sources.md
    {"loader": {"split": {"train": 0.9, "val": 1.2}, "subset": "val"}},
    {"data": {"source": "fodler", "root": "x"}},
    {"data": {"root": "x"}},
    {"pipeline": [{"decode": {"mode": "rgba"}}]},
    {"pipeline": [{"resize": {"size": "big"}}]},
    {"pipeline": [{"resize": {"size": 0}}]},
    {"pipeline": [{"resize": {"size": [1, 2, 3]}}]},
    {"pipeline": [{"resize": {}}]},
    {"pipeline": ["resize"]},
    {"pipeline": [{"decode": {}, "resize": {"size": 3}}]},
    {"pipeline": [{"random_apply": {"transforms": []}}]},
    {"pipeline": [{"random_horizontal_flip": {"p": {"value": 0.5, "untl": 60, "then": 0.1}}}]},
    {"pipeline": [{"random_horizontal_flip": {"p": 1.5}}]},
    {"pipeline": [{"timm_augment": {"polcy": "rand-m9"}}]},
    {"batch": 64},
    {"loader": {"device": "tpu"}},
    {"loader": {"engine": "dalli"}},
    {"loader": {"shard": {"ranks": 0}}},
    {"batch_size": 64},
]


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_what_is_wrong_does_not_validate_and_does_not_load(
    schemas: dict[str, Any], change: dict[str, Any]
) -> None:
    assert mistakes(schemas["config"], RIGHT) == []
    assert mistakes(schemas["config"], RIGHT | change)
    with pytest.raises(ConfigError):
        config.read(RIGHT | change)


def test_every_step_source_and_setting_has_a_description(schemas: dict[str, Any]) -> None:
    schema = schemas["config"]
    names = {f"step.{n}" for n in STEPS.names()}
    names |= {f"batch_step.{n}" for n in BATCH_STEPS.names()}
    names |= {f"source.{n}" for n in source.SOURCES.names()}
    assert names <= schema["$defs"].keys()
    assert schema["properties"]["loader"]["properties"].keys() == LoaderConfig.model_fields.keys()
    parts = {name: schema["$defs"][name] for name in names}
    parts["loader"] = schema["properties"]["loader"]
    without = [
        f"{name}.{key}"
        for name, part in parts.items()
        for key, value in part["properties"].items()
        if not value.get("description") and not key.startswith("_")
    ]
    assert without == []


def test_ranges_and_defaults_are_those_of_the_models(schemas: dict[str, Any]) -> None:
    size = schemas["config"]["properties"]["loader"]["properties"]["batch_size"]
    assert size["default"] == 256
    assert size["anyOf"][0] == {"minimum": 1, "maximum": 1_000_000, "type": "integer"}
    flip = schemas["pipeline"]["$defs"]["step.random_horizontal_flip"]["properties"]["p"]
    assert flip["default"] == 0.5
    assert flip["anyOf"][0] == {"minimum": 0, "maximum": 1, "type": "number"}


def test_steps_of_installed_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = '''
from gpupipe.pipeline.step import Step
class Shake(Step):
    """Shake an image.

    Attributes:
        strength: How much, in pixels.
    """
    strength: int
class Broken: pass
'''
    plugin.install(tmp_path, "shaking", code, shake="Shake", broken="Broken")
    monkeypatch.syspath_prepend(str(tmp_path))
    schema = make_schema("pipeline")
    strength = schema["$defs"]["step.shake"]["properties"]["strength"]
    assert strength["description"] == "How much, in pixels."
    assert mistakes(schema, ["decode", {"shake": {"strength": 3}}]) == []
    assert mistakes(schema, ["decode", {"shake": {"strenth": 3}}])
    assert "step.broken" not in schema["$defs"], "a broken package is left out"


def test_a_schema_is_plain_json_and_has_each_step_once(schemas: dict[str, Any]) -> None:
    for schema in schemas.values():
        text = json.dumps(schema)
        assert json.loads(text) == schema
        assert text.count("Did you mean resize?") == text.count('"#/$defs/step.resize"') == 1
