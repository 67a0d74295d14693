import json
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import ImageFolder

from gpupipe import config
from gpupipe.errors import ConfigError
from gpupipe.schema import yaml_files
from gpupipe.steps.decode import Decode
from gpupipe.steps.resize import Resize
from helpers.config_texts import DATA, STEPS, mistakes, read


def test_all_mistakes_at_once_in_the_order_of_the_file() -> None:
    text = """# several
loader:
  batch_size: 0
  seeed: 3
  shard: {rank: -1}
pipeline:
  - decode: {mode: bgr}
  - random_afine: {degrees: 3}
  - resize: {size: -3}
  - normalize: {mean: 0, std: 1}
laoder: {}
data: {source: folder, rot: /x, fetch: lwf, stand_in: '${oc.env:NOT_SET}'}
"""
    assert mistakes(text, "bacth_size=3", prefetch=0) == [
        "3:15: loader.batch_size is 0, but should be at least 1",
        "4:3: loader.seeed: unknown key; did you mean 'seed'?",
        "5:17: loader.shard.rank is -1, but should be at least 0",
        "7:20: decode.mode is 'bgr', but should be 'rgb' or 'gray'",
        "8:5: unknown step 'random_afine'; did you mean 'random_affine'?",
        "9:20: resize.size is -3, but should be at least 1",
        "10:5: normalize cannot stand here: it needs floats, but gets uint8: write "
        "'to_dtype: {dtype: float32, scale: true}' before it",
        "11:1: laoder: unknown key; did you mean 'loader'?",
        "12:24: data.rot: unknown key; did you mean 'root'?",
        "12:40: data.fetch: unknown data set 'lwf'; did you mean 'lfw'?",
        "12:55: data.stand_in: the environment variable NOT_SET is not set: set it, or "
        "write a default: ${oc.env:NOT_SET,default}",
        "'bacth_size=3': bacth_size: unknown key; did you mean 'batch_size'?",
        "'prefetch=0': loader.prefetch is 0, but should be at least 1",
    ]


def test_two_keys_that_stand_twice_are_both_said() -> None:
    assert mistakes(DATA + STEPS + "loader: {seed: 1, seed: 2}\npipeline: affine\n") == [
        "3:19: 'seed' stands here twice (first at c.yaml:3:10): remove one",
        "4:1: 'pipeline' stands here twice (first at c.yaml:2:1): remove one",
    ]


def test_a_mistake_in_a_pipelines_own_file_points_there() -> None:
    Path("pipelines").mkdir()
    Path("pipelines/mine.yaml").write_text("# mine\n- decode\n- resize: {size: 0}\n- resise\n")
    assert mistakes(DATA + "pipeline: mine\nloader: {seed: -1}\n") == [
        "3:16: loader.seed is -1, but should be at least 0",
        "pipelines/mine.yaml:3:18: resize.size is 0, but should be at least 1",
        "pipelines/mine.yaml:4:3: unknown step 'resise'; did you mean 'resize'?",
    ]
    Path("pipelines/mine.yaml").write_text("pipeline:\n  - decode\n")
    assert mistakes(DATA + "pipeline: mine\n")[0].startswith(
        "pipelines/mine.yaml:1:1: this is a config, and no pipeline: a pipeline is a list of steps"
    )


KNOWN = (
    "autoaugment, byol, cifar10, detr, dino_v2, imagenet_eval, imagenet_train, keypoint_rcnn, lfw, "
    "lfw_heavy, multiscale, progressive_resizing, randaugment, segmentation_train, simclr, ssd, "
    "ssdlite, timm_a1, timm_a2, timm_a3, torchvision_resnet50_v2"
)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("lwf", "did you mean 'lfw'?"),
        ("lfw.yml", "did you mean 'lfw'?"),
        ("lfw_heavy.yaml", "did you mean 'lfw_heavy'?"),
        ("/nowhere/x.yaml", f"known: {KNOWN}"),
        ("~nobody_of_this_name/x.yaml", f"known: {KNOWN}"),
        ("", f"known: {KNOWN}"),
    ],
)
def test_a_config_that_is_not_there(name: str, instead: str) -> None:
    with pytest.raises(ConfigError) as error:
        config.read(name)
    assert str(error.value) == f"no config '{name}': it is neither a file nor a name; {instead}"


def test_a_file_of_nearly_that_name(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("")
    with pytest.raises(ConfigError, match=rf"did you mean '{tmp_path}/train.yaml'\?$"):
        config.read(f"{tmp_path}/train.yml")


def test_a_file_without_its_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.train.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"did you mean 'my.train.yaml'\?$"):
        config.read("my.train")


def test_a_json_file_is_a_config(tmp_path: Path) -> None:
    """Indented by tabs too, with a mistake in its place."""
    data = {"data": {"source": "folder", "root": str(tmp_path)}, "pipeline": "imagenet_eval"}
    path = tmp_path / "c.json"
    path.write_text(json.dumps(data | {"loader": {"batch_size": 1e2, "seed": 3}}, indent="\t"))
    found = config.read(path)
    assert found.loader.batch_size == 100
    assert found.loader.seed == 3
    assert found.pipeline.name == "imagenet_eval"
    path.write_text(json.dumps(data | {"loader": {"seed": -1}}, indent="\t"))
    with pytest.raises(ConfigError, match=r"c\.json:8:11: loader.seed is -1"):
        config.read(path)


def test_a_file_with_another_ending_is_no_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.conf").write_text("data: 1")
    with pytest.raises(ConfigError, match=r"c.conf' is no config.*\.yaml, \.yml or \.json"):
        config.read("c.conf")


def test_a_whole_config_as_text_is_no_name() -> None:
    with pytest.raises(ConfigError, match="it is neither a file nor a name"):
        config.read((DATA + STEPS) * 100)


@pytest.mark.parametrize("name", yaml_files.names("configs"))
def test_the_shipped_configs_load(name: str) -> None:
    loaded = config.read(name)
    assert loaded.name == name
    detection = dict.fromkeys(("detr", "keypoint_rcnn", "multiscale", "ssd", "ssdlite"), "coco")
    sources = {"segmentation_train": "file_list", **detection}
    assert loaded.source_name == sources.get(name, "folder")
    assert loaded.pipeline.output_spec.dtype == "float32"


def test_a_config_of_ones_own_comes_before_a_shipped_one() -> None:
    Path("configs").mkdir()
    Path("configs/lfw.yaml").write_text(DATA + STEPS)
    assert config.read("lfw").pipeline.name == "inline"


def test_pipelines_are_found_beside_the_config_and_beside_its_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for folder in ("project/configs", "project/pipelines", "elsewhere"):
        Path(folder).mkdir(parents=True)
    Path("project/pipelines/mine.yaml").write_text("- decode: {mode: gray}\n")
    Path("project/configs/near.yaml").write_text(
        "- decode: {mode: gray}\n- random_horizontal_flip\n"
    )
    Path("project/configs/a.yaml").write_text(DATA + "pipeline: mine\n")
    Path("project/configs/b.yaml").write_text(DATA + "pipeline: near.yaml\n")
    for here, prefix in (
        (".", "project/configs/"),
        ("elsewhere", "../project/configs/"),
        ("project/configs", ""),
    ):
        with monkeypatch.context() as context:
            context.chdir(here)
            assert config.read(f"{prefix}a.yaml").pipeline.output_spec.channels == 1
            assert len(config.read(f"{prefix}b.yaml").pipeline.entries) == 2


def test_the_home_folder_and_the_environment_in_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = STEPS + "data:\n  source: folder\n  root: ${oc.env:DATA_HERE,'~/data'}/x\n"
    monkeypatch.delenv("DATA_HERE", raising=False)
    assert read(text).source.root == Path("/home/me/data/x")  # type: ignore[attr-defined]
    monkeypatch.setenv("DATA_HERE", "/big")
    assert read(text).source.root == Path("/big/x")  # type: ignore[attr-defined]


def test_a_dict_is_as_good_as_a_file() -> None:
    source = {"source": "folder", "root": Path("/x")}
    loaded = config.read(
        {
            "data": source,
            "pipeline": ("decode", {"resize": {"size": (3, np.int64(4))}}),
            "loader": {"batch_size": 3},
        },
        ["seed=5"],
        prefetch=4,
    )
    assert loaded.name == "config"
    assert [e.step for e in loaded.pipeline.entries] == [Decode(), Resize(size=(3, 4))]
    assert (loaded.loader.batch_size, loaded.loader.seed, loaded.loader.prefetch) == (3, 5, 4)
    assert source == {"source": "folder", "root": Path("/x")}, "which is left as it was"


def test_a_dict_is_not_changed_by_overrides() -> None:
    given_ = {
        "data": {"source": "folder", "root": "/x"},
        "pipeline": ["decode"],
        "loader": {"batch_size": 3},
    }
    config.read(given_, ["batch_size=4"], data={"root": "/y"})
    assert given_ == {
        "data": {"source": "folder", "root": "/x"},
        "pipeline": ["decode"],
        "loader": {"batch_size": 3},
    }


def test_mistakes_in_a_dict_have_a_place_too() -> None:
    wrong = {
        "data": {"source": "folder", "root": "/x", "fetch": "lwf"},
        "loader": {"batch_size": 0},
        "pipeline": [
            "decode",
            {"random_affine": {"degrees": 3, "translate": (0.1, 2)}},
            "resise",
            {"random_affine": {"degrees": "x"}},
        ],
    }
    assert mistakes(wrong, seed=-1) == [
        "config: data.fetch: unknown data set 'lwf'; did you mean 'lfw'?",
        "config: loader.batch_size is 0, but should be at least 1",
        "config: pipeline.1: random_affine.translate.1 is 2, but should be at most 1",
        "config: pipeline.2: unknown step 'resise'; did you mean 'resize'?",
        "config: pipeline.3: random_affine.degrees is 'x', but should be a number a of at "
        "least 0 for [-a, a], or [min, max]",
        "'seed=-1': loader.seed is -1, but should be at least 0",
    ]
    assert mistakes({"data": None}) == [
        "config: data is empty, but should be a mapping (where the samples are: "
        "{source: folder, root: PATH})",
        "config: pipeline: missing; write 'pipeline: ...' (the name of a pipeline, or a "
        "list of steps)",
    ]
    assert mistakes(
        {"data": {"source": "folder", "root": "${oc.env:NOT_SET}"}, "pipeline": "affine"}
    ) == [
        "config: data.root: the environment variable NOT_SET is not set: set it, or write "
        "a default: ${oc.env:NOT_SET,default}"
    ]


def test_nested_too_deeply_in_a_dict_or_a_change_is_a_mistake() -> None:
    deep: list[object] = []
    for _ in range(900):
        deep = [deep]
    itself: list[object] = []
    itself.append(itself)
    data = {"source": "folder", "root": "/x"}
    for steps in (deep, itself):
        (line,) = mistakes({"data": data, "pipeline": steps})
        assert line.startswith("config: nested too deeply")
        (line,) = mistakes({"data": data, "pipeline": ["decode"]}, pipeline=steps)
        assert line.startswith("pipeline: nested too deeply")


def test_an_object_that_is_no_config_is_told_what_to_write(faces: Path) -> None:
    with pytest.raises(ConfigError, match="pipeline: missing"):
        config.read(ImageFolder(faces))
    with pytest.raises(ConfigError, match="it is a int, but should be the path of a YAML file"):
        config.read(3)  # type: ignore[arg-type]
