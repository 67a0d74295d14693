from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpupipe import config
from gpupipe.config import Config
from gpupipe.errors import ConfigError
from gpupipe.schema import builtin_configs
from gpupipe.steps.decode import Decode
from gpupipe.steps.random_affine import RandomAffine
from gpupipe.steps.random_horizontal_flip import RandomHorizontalFlip
from gpupipe.steps.resize import Resize

DATA = "data: {source: folder, root: /x}\n"
SOURCES = "file_list, folder, numpy, raw, recordio, remote, tfrecord, webdataset"
STEPS = "pipeline: [decode]\n"
LOADER = DATA + STEPS + "loader:\n  "
KNOWN = "; known: " + ", ".join(sorted(config.LoaderConfig.model_fields))
JARGON = re.compile(
    r"Input|type=|literal_error|PosixPath|NoneType|None\b|<class|validation"
    r"|(?<!')tuple|dictionary|instance "
    r"of|pydantic|Traceback|Errno",
    re.IGNORECASE,
)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOT_SET", raising=False)


def read(text: str, *overrides: str, **changes: Any) -> Config:
    Path("c.yaml").write_text(text)
    return config.read("c.yaml", overrides, **changes)


def mistakes(text: str | dict[str, Any], *overrides: str, **changes: Any) -> list[str]:
    """Every problem of a config in c.yaml (or a dict), without the file's name."""
    with pytest.raises(ConfigError) as error:
        read(text, *overrides, **changes) if isinstance(text, str) else config.read(
            text, overrides, **changes
        )
    said = [str(p) for p in error.value.problems]
    assert str(error.value).split("\n") == said, "one line each"
    assert not [p.what for p in error.value.problems if JARGON.search(p.what)], "in plain words"
    return [s.removeprefix("c.yaml:") for s in said]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # unknown keys
        (DATA + STEPS + "loeder: {seed: 1}\n", "3:1: loeder: unknown key; did you mean 'loader'?"),
        (DATA + STEPS + "zzz: 1\n", "3:1: zzz: unknown key; known: data, loader, pipeline"),
        (
            DATA + STEPS + "batch_size: 4\n",
            "3:1: batch_size: unknown key; it belongs under 'loader'",
        ),
        (
            LOADER + "bacth_size: 3\n",
            "4:3: loader.bacth_size: unknown key; did you mean 'batch_size'?",
        ),
        (LOADER + "zzz: 3\n", "4:3: loader.zzz: unknown key" + KNOWN),
        (LOADER + "on: 3\n", "4:3: loader.on: unknown key" + KNOWN),
        (
            LOADER + "world_size: 3\n",
            "4:3: loader.world_size: unknown key; it belongs under 'shard'",
        ),
        (LOADER + "shard: {rnk: 3}\n", "4:11: loader.shard.rnk: unknown key; did you mean 'rank'?"),
        (
            STEPS + "data: {source: folder, root: /x, fech: lfw}\n",
            "2:34: data.fech: unknown key; did you mean 'fetch'?",
        ),
        (
            STEPS + "data: {source: folder, rot: /x}\n",
            "2:24: data.rot: unknown key; did you mean 'root'?",
        ),
        (
            STEPS + "data: {sorce: folder, root: /x}\n",
            "2:8: data.sorce: unknown key; did you mean 'source'?",
        ),
        # unknown names
        (
            STEPS + "data: {source: foldr, root: /x}\n",
            "2:16: unknown source 'foldr'; did you mean 'folder'?",
        ),
        (
            STEPS + "data: {source: folder, root: /x, fetch: lwf}\n",
            "2:41: data.fetch: unknown data set 'lwf'; did you mean 'lfw'?",
        ),
        (
            DATA + "pipeline: imagenet_evl\n",
            "2:11: no pipeline 'imagenet_evl': it is neither a file nor a name; did you mean "
            "'imagenet_eval'?",
        ),
        # what is missing
        (
            STEPS,
            "1:1: data: missing; write 'data: ...' (where the samples are: {source: folder, "
            "root: PATH})",
        ),
        (
            DATA,
            "1:1: pipeline: missing; write 'pipeline: ...' (the name of a pipeline, or a list of "
            "steps)",
        ),
        (
            STEPS + "data: {root: /x}\n",
            "2:1: data.source: missing; write 'source: ...' (the name of what reads the data: "
            + SOURCES
            + ")",
        ),
        (
            STEPS + "data: {source: folder}\n",
            "2:1: data.root: missing; write 'root: ...' (the folder; ~ stands for the home "
            "directory)",
        ),
        # another kind of value
        (
            LOADER + "batch_size: many\n",
            "4:15: loader.batch_size is 'many', but should be a whole number",
        ),
        (
            LOADER + "batch_size: 1.5\n",
            "4:15: loader.batch_size is 1.5, but should be a whole number",
        ),
        (
            LOADER + "batch_size: yes\n",
            "4:15: loader.batch_size is true, but should be a whole number",
        ),
        (
            LOADER + "batch_size: 2024-01-02\n",
            "4:15: loader.batch_size is '2024-01-02', but should be a whole number",
        ),
        (
            LOADER + "batch_size: [1, 2]\n",
            "4:15: loader.batch_size is [1, 2], but should be a whole number",
        ),
        (
            LOADER + "batch_size: {a: 1}\n",
            "4:15: loader.batch_size is {a: 1}, but should be a whole number",
        ),
        (
            LOADER + "batch_size:\n",
            "4:14: loader.batch_size is empty, but should be a whole number",
        ),
        (
            LOADER + f"batch_size: {'x' * 99}\n",
            f"4:15: loader.batch_size is '{'x' * 56}..., but should be a whole number",
        ),
        (
            LOADER + "threads: yes\n",
            "4:12: loader.threads is true, but should be 'auto' or a whole number",
        ),
        (
            LOADER + "threads: many\n",
            "4:12: loader.threads is 'many', but should be 'auto' or a whole number",
        ),
        (
            LOADER + "threads: 1.5\n",
            "4:12: loader.threads is 1.5, but should be 'auto' or a whole number",
        ),
        (LOADER + "threads: 0\n", "4:12: loader.threads is 0, but should be 'auto' or at least 1"),
        (
            LOADER + "shuffle: maybe\n",
            "4:12: loader.shuffle is 'maybe', but should be true or false",
        ),
        (LOADER + "shuffle: 3\n", "4:12: loader.shuffle is 3, but should be true or false"),
        (
            LOADER + "last_batch: droop\n",
            "4:15: loader.last_batch is 'droop', but should be 'partial', 'drop' or 'pad'",
        ),
        (
            LOADER + "device: tpu\n",
            "4:11: loader.device is 'tpu', but should be auto, cpu, gpu or gpu:N",
        ),
        (LOADER + "device: 0\n", "4:11: loader.device is 0, but should be auto, cpu, gpu or gpu:N"),
        (
            LOADER + "on_error: off\n",
            "4:13: loader.on_error is false, but should be 'raise' or 'skip'; "
            "YAML reads yes, no, on and off as true and false: put a word in quotes",
        ),
        (LOADER + "quarantine: 3\n", "4:15: loader.quarantine is 3, but should be a path"),
        (LOADER + "max_bad: 2%\n", "4:12: loader.max_bad is '2%', but should be a number"),
        (LOADER + "max_bad: yes\n", "4:12: loader.max_bad is true, but should be a number"),
        (
            LOADER + "shard: 3\n",
            "4:10: loader.shard is 3, but should be keys with values, such as {rank: ...}",
        ),
        (
            DATA + STEPS + "loader:\n",
            "3:8: loader is empty, but should be keys with values, such as {batch_size: ...}",
        ),
        (
            DATA + STEPS + "loader: [1]\n",
            "3:9: loader is [1], but should be keys with values, such as {batch_size: ...}",
        ),
        (
            STEPS + "data: /x\n",
            "2:7: data is '/x', but should be keys with values (where the samples are: {source: "
            "folder, root: PATH})",
        ),
        (
            STEPS + "data: {source: 3, root: /x}\n",
            "2:16: data.source is 3, but should be the name of what reads the data: " + SOURCES,
        ),
        (STEPS + "data: {source: folder, root: 3}\n", "2:30: data.root is 3, but should be a path"),
        (
            STEPS + "data: {source: folder, root: }\n",
            "2:29: data.root is empty, but should be a path",
        ),
        (
            STEPS + "data: {source: folder, root: /x, extensions: jpg}\n",
            "2:46: data.extensions is 'jpg', but should be a list",
        ),
        (
            STEPS + "data: {source: folder, root: /x, extensions: []}\n",
            "2:46: data.extensions is [], but should be a list of at least 1",
        ),
        (
            STEPS + "data: {source: folder, root: /x, extensions: [jpg, 3]}\n",
            "2:52: data.extensions.1 is 3, but should be text",
        ),
        (
            DATA + "pipeline: 3\n",
            "2:11: pipeline is 3, but should be the name of a pipeline, or a list of steps",
        ),
        (
            DATA + "pipeline: {decode: }\n",
            "2:11: pipeline is {decode: empty}, but should be the name of a pipeline, or a list "
            "of steps",
        ),
        (
            DATA + "pipeline:\n",
            "2:10: pipeline is empty, but should be the name of a pipeline, or a list of steps",
        ),
        (
            DATA + "pipeline: []\n",
            "2:11: there is no step: a pipeline is a list of steps, each '- name: {parameter: "
            "value}' or '- name'",
        ),
        # out of range
        (LOADER + "batch_size: 0\n", "4:15: loader.batch_size is 0, but should be at least 1"),
        (
            LOADER + "batch_size: 10_000_000\n",
            "4:15: loader.batch_size is 10000000, but should be at most 1000000",
        ),
        (LOADER + "seed: -1\n", "4:9: loader.seed is -1, but should be at least 0"),
        (
            LOADER + "seed: 9223372036854775808\n",
            "4:9: loader.seed is 9223372036854775808, but should be below 9223372036854775808",
        ),
        (LOADER + "prefetch: 0\n", "4:13: loader.prefetch is 0, but should be at least 1"),
        (LOADER + "max_bad: 2\n", "4:12: loader.max_bad is 2, but should be at most 1"),
        (LOADER + "max_bad: .nan\n", "4:12: loader.max_bad is nan, but should be a finite number"),
        (
            LOADER + "hw_decoder_load: -0.1\n",
            "4:20: loader.hw_decoder_load is -0.1, but should be at least 0",
        ),
        (
            LOADER + "shard: {rank: 2, world_size: 2}\n",
            "4:10: loader.shard: rank 2 must be below world_size 2: ranks count from 0",
        ),
        (
            STEPS + "data: {source: folder, root: /x, stand_in: -3}\n",
            "2:44: data.stand_in is -3, but should be at least 1",
        ),
        # the file as a whole
        (
            "",
            "1:1: this is empty, but a config holds 'data:', 'pipeline:' and 'loader:', with "
            "values after or below them",
        ),
        (
            "# nothing\n",
            "1:1: this is empty, but a config holds 'data:', 'pipeline:' and 'loader:', with "
            "values after or below them",
        ),
        (
            "- data\n",
            "1:1: this is a list, but a config holds 'data:', 'pipeline:' and 'loader:', with "
            "values after or below them",
        ),
        (
            "data /x\n",
            "1:1: this is 'data /x', but a config holds 'data:', 'pipeline:' and 'loader:', with "
            "values after or below them",
        ),
        (
            DATA + STEPS + "loader: a: b\n",
            "3:10: not YAML: a second colon: put a value that holds one in quotes, and a new key "
            "on its own line",
        ),
        (DATA + "\tpipeline: x\n", "2:1: not YAML: a tab: indent with spaces"),
        (
            LOADER + "seed: 1\n  batch_size: 2\n  seed: 2\n",
            "6:3: 'seed' stands here twice (first at c.yaml:4:3): remove one",
        ),
        # interpolation
        (
            STEPS + "data:\n  source: folder\n  root: ${oc.env:NOT_SET}/x\n",
            "4:9: data.root: the environment variable NOT_SET is not set: set it, or write a "
            "default: ${oc.env:NOT_SET,default}",
        ),
        (
            STEPS + "data:\n  source: folder\n  root: ${data.rot}/x\n",
            "4:9: data.root: '${data.rot}/x': there is no key 'data.rot'; did you mean "
            "'data.root'?",
        ),
        (
            LOADER + "batch_size: ${oc.env:NOT_SET}\n",
            "4:15: loader.batch_size: the environment variable NOT_SET is not set: set it, or "
            "write a default: ${oc.env:NOT_SET,default}",
        ),
        (
            STEPS + "data:\n  source: folder\n  root: ???\n",
            "4:9: data.root: ??? stands for a value that must be given: write it here, or give "
            "it as an override",
        ),
        # anchors and merges point at where a value was written
        (
            DATA + STEPS + "loader:\n  <<: {seed: -1, prefetch: 3}\n  prefetch: 2\n",
            "4:14: loader.seed is -1, but should be at least 0",
        ),
    ],
    ids=lambda text: text.replace(DATA, "").replace(STEPS, "").replace("\n", " ").strip()[:50],
)
def test_a_mistake_is_one_message_with_its_place(text: str, message: str) -> None:
    assert mistakes(text) == [message]


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
        "pipelines/mine.yaml:1:1: this is no list: a pipeline is a list of steps"
    )


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("lwf", "did you mean 'lfw'?"),
        ("lfw.yml", "did you mean 'lfw'?"),
        ("lfw_heavy.yaml", "did you mean 'lfw_heavy'?"),
        ("/nowhere/x.yaml", "known: imagenet_eval, imagenet_train, lfw, lfw_heavy"),
        ("~nobody_of_this_name/x.yaml", "known: imagenet_eval, imagenet_train, lfw, lfw_heavy"),
        ("", "known: imagenet_eval, imagenet_train, lfw, lfw_heavy"),
    ],
)
def test_a_config_that_is_not_there(name: str, instead: str) -> None:
    with pytest.raises(ConfigError) as error:
        config.read(name)
    assert str(error.value) == f"no config '{name}': it is neither a file nor a name; {instead}"


def test_a_whole_config_as_text_is_no_name() -> None:
    with pytest.raises(ConfigError, match="it is neither a file nor a name"):
        config.read((DATA + STEPS) * 100)


@pytest.mark.parametrize("name", builtin_configs.names("configs"))
def test_the_shipped_configs_load(name: str) -> None:
    loaded = config.read(name)
    assert loaded.name == name
    assert loaded.source_name == "folder"
    assert loaded.pipeline.made.dtype == "float32"


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
            assert config.read(f"{prefix}a.yaml").pipeline.made.channels == 1
            assert len(config.read(f"{prefix}b.yaml").pipeline.entries) == 2


# Values


def test_defaults() -> None:
    loader = read(DATA + STEPS).loader
    assert loader == config.LoaderConfig()
    assert (
        loader.batch_size,
        loader.shuffle,
        loader.last_batch,
        loader.threads,
        loader.shard.world_size,
    ) == (256, True, "partial", "auto", 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("max_bad: 1e-3", 1e-3),
        ("max_bad: 0", 0.0),
        ("batch_size: 1e3", 1000),
        ("batch_size: 1_000", 1000),
        ("batch_size: 010", 10),
        ("batch_size: '64'", 64),
        ("shuffle: no", False),
        ("shuffle: on", True),
        ("shuffle: False", False),
        ("ids: yes", True),
        ("threads: 4", 4),
        ("threads: auto", "auto"),
        ("device: cuda:1", "gpu:1"),
        ("device: gpu", "gpu"),
        ("dtype: ~", None),
        ("seed: 9223372036854775807", 2**63 - 1),
        ("quarantine: 2024-01-02", Path("2024-01-02")),
        ("batch_size: ${oc.env:BATCH,'32'}", 32),
        ("prefetch: ${.threads}", "auto"),
    ],
    ids=str,
)
def test_values(text: str, value: Any) -> None:
    if text == "prefetch: ${.threads}":
        assert read(LOADER + text + "\n  threads: 3\n").loader.prefetch == 3
        return
    assert getattr(read(LOADER + text + "\n").loader, text.partition(":")[0]) == value


def test_the_home_folder_and_the_environment_in_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = STEPS + "data:\n  source: folder\n  root: ${oc.env:DATA_HERE,'~/data'}/x\n"
    monkeypatch.delenv("DATA_HERE", raising=False)
    assert read(text).source.root == Path("/home/me/data/x")  # type: ignore[attr-defined]
    monkeypatch.setenv("DATA_HERE", "/big")
    assert read(text).source.root == Path("/big/x")  # type: ignore[attr-defined]


# Overrides

INLINE = (
    "data: {source: folder, root: /x, fetch: lfw}\npipeline:\n  - decode\n  - "
    "random_affine: {degrees: 3, scale: [1, 2]}\n  - random_horizontal_flip\n"
    "loader:\n  batch_size: 8\n"
)


def test_overrides() -> None:
    assert read(INLINE, "batch_size=64").loader.batch_size == 64
    assert read(INLINE, "loader.batch_size=64", "batch_size=65").loader.batch_size == 65, (
        "the last one counts"
    )
    assert read(INLINE, "data.root=/y").source.root == Path("/y")  # type: ignore[attr-defined]
    assert read(INLINE, "data.root=2024-01-02").source.root == Path("2024-01-02")
    assert read(INLINE, "loader.shard.world_size=2", "shard.rank=1").loader.shard == config.Shard(
        rank=1, world_size=2
    )
    assert read(INLINE, "pipeline=imagenet_eval").pipeline.name == "imagenet_eval"
    assert read(INLINE, "max_bad=1e-3", "shuffle=off", "threads=auto").loader.max_bad == 1e-3
    assert read(INLINE, "shuffle=off").loader.shuffle is False
    assert read(DATA + STEPS, "seed=7").loader.seed == 7, "also where there is no loader: yet"
    assert read(DATA + STEPS + "loader:\n", "seed=7").loader.seed == 7, "or an empty one"
    assert read("loader: {}\n" + STEPS, "data={source: folder, root: /z}").source.root == Path("/z")


def test_overrides_of_a_steps_parameters() -> None:
    entries = read(
        INLINE,
        "pipeline.1.random_affine.degrees=10",
        "pipeline.1.random_affine.scale.1=4",
        "pipeline.2.random_horizontal_flip.p=0.25",
        "pipeline.0.decode.mode=gray",
    ).pipeline.entries
    assert [e.step for e in entries] == [
        Decode(mode="gray"),
        RandomAffine(degrees=(-10, 10), scale=(1, 4)),
        RandomHorizontalFlip(p=0.25),
    ]


def test_an_override_can_use_what_the_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIG", "/big")
    assert read(INLINE, "data.root=${oc.env:BIG}/${data.fetch}").source.root == Path("/big/lfw")


def test_an_override_changes_one_step_and_not_its_aliases() -> None:
    text = (
        DATA + "pipeline:\n  - decode\n  - random_affine: &a {degrees: 3}\n  - random_affine: *a\n"
    )
    _, first, second = read(text, "pipeline.1.random_affine.degrees=10").pipeline.entries
    assert (first.step, second.step) == (
        RandomAffine(degrees=(-10, 10)),
        RandomAffine(degrees=(-3, 3)),
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch_size", "an override is key=value, for instance batch_size=64 or data.root=/images"),
        ("=3", "an override is key=value, for instance batch_size=64 or data.root=/images"),
        ("loader.=3", "an override is key=value, for instance batch_size=64 or data.root=/images"),
        (
            "batch_size=[1",
            "the value is not YAML: expected ',' or ']', but got '<stream end>', after the [ at "
            "1:1",
        ),
        (
            "data.root=a: b: c",
            "the value is not YAML: a second colon: put a value that holds one in quotes, and a "
            "new key on its own line",
        ),
        ("bacth_size=3", "bacth_size: unknown key; did you mean 'batch_size'?"),
        ("pipelin=affine", "pipelin: unknown key; did you mean 'pipeline'?"),
        ("root=/y", "root: unknown key; did you mean 'data.root'?"),
        ("dat.root=/y", "dat: unknown key; did you mean 'data.root'?"),
        ("rank=1", "rank: unknown key; did you mean 'shard.rank'?"),
        (
            "zzzz=1",
            "zzzz: unknown key; known: data, pipeline, loader, and what stands in them, such as "
            "data.root",
        ),
        ("loader.bacth_size=3", "loader.bacth_size: unknown key; did you mean 'batch_size'?"),
        ("shard.rnk=1", "loader.shard.rnk: unknown key; did you mean 'rank'?"),
        ("data.rot=/y", "data.rot: unknown key; did you mean 'root'?"),
        ("batch_size=0", "loader.batch_size is 0, but should be at least 1"),
        ("batch_size=", "loader.batch_size is empty, but should be a whole number"),
        (
            "device=off",
            "loader.device is false, but should be auto, cpu, gpu or gpu:N; YAML reads yes, no, "
            "on and off as true and false: put a word in quotes",
        ),
        (
            "data.root=${oc.env:NOT_SET}",
            "data.root: the environment variable NOT_SET is not set: set it, or write a default: "
            "${oc.env:NOT_SET,default}",
        ),
        ("data.root.x=1", "data.root is '/x': there is no 'x' in it to change"),
        ("batch_size.x=1", "loader.batch_size is 8: there is no 'x' in it to change"),
        ("loader=3", "loader is 3, but should be keys with values, such as {batch_size: ...}"),
        (
            "pipeline=imagenet_evl",
            "no pipeline 'imagenet_evl': it is neither a file nor a name; did you mean "
            "'imagenet_eval'?",
        ),
        ("pipeline=[decode, resise]", "pipeline.1: unknown step 'resise'; did you mean 'resize'?"),
        (
            "pipeline.7.random_affine.degrees=10",
            "there is no pipeline.7: pipeline is a list of 3, which count from 0",
        ),
        (
            "pipeline.first.x=1",
            "there is no pipeline.first: pipeline is a list of 3, which count from 0",
        ),
        (
            "pipeline.1.random_afine.degrees=10",
            "pipeline.1 is not 'random_afine' but 'random_affine'",
        ),
        (
            "pipeline.2.random_horizontal_flop.p=1",
            "pipeline.2 is 'random_horizontal_flip': there is no 'random_horizontal_flop' in it "
            "to change",
        ),
        (
            "pipeline.1.random_affine.degres=10",
            "random_affine.degres: unknown key; did you mean 'degrees'?",
        ),
        ("pipeline.1.random_affine.scale.1=0", "random_affine.scale.1 is 0, but should be above 0"),
        (
            "pipeline.1.random_affine.scale.1=0.5",
            "random_affine.scale is [1, 0.5], but should be [0.5, 1]: the smaller number first",
        ),
    ],
    ids=str,
)
def test_a_wrong_override_is_named_itself(override: str, message: str) -> None:
    place = f"'{override}'" if "scale.1=0.5" not in override else "c.yaml:4:40"
    assert mistakes(INLINE, override) == [f"{place}: {message}".removeprefix("c.yaml:")]


def test_a_named_pipeline_has_no_steps_to_change() -> None:
    assert mistakes(DATA + "pipeline: affine\n", "pipeline.1.random_affine.degrees=10") == [
        "'pipeline.1.random_affine.degrees=10': pipeline is a name, 'affine': to change a "
        "step of it, write the list of its steps in the config instead"
    ]


def test_an_override_does_not_take_the_blame_for_its_neighbours() -> None:
    assert mistakes(INLINE + "  seed: -1\n", "loader.shard.rank=1", loader={"prefetch": 3}) == [
        "8:9: loader.seed is -1, but should be at least 0",
        "'loader.shard.rank=1': loader.shard: rank 1 must be below world_size 1: ranks "
        "count from 0",
    ]
    assert mistakes(
        {
            "data": {"source": "folder", "root": "/x"},
            "pipeline": ["decode"],
            "loader": {"seed": -1},
        },
        "batch_size=64",
    ) == ["config: loader.seed is -1, but should be at least 0"]


# Keyword changes


def test_keywords_change_what_they_name() -> None:
    assert read(INLINE, batch_size=64).loader.batch_size == 64
    changed = read(INLINE, loader={"seed": 3}, data={"root": Path("/p")}, shard={"world_size": 2})
    assert (changed.loader.seed, changed.loader.batch_size, changed.loader.shard.world_size) == (
        3,
        8,
        2,
    )
    assert (changed.source.root, changed.source.fetch) == (Path("/p"), "lfw")
    assert read(INLINE, data={}).source.root == Path("/x")  # type: ignore[attr-defined]


def test_a_list_replaces_the_whole_list() -> None:
    entries = read(INLINE, pipeline=["decode", {"resize": {"size": (3, 4)}}]).pipeline.entries
    assert [e.step for e in entries] == [Decode(), Resize(size=(3, 4))]
    assert [e.step for e in read(INLINE, "pipeline=[decode]").pipeline.entries] == [Decode()]
    assert read(INLINE, data={"extensions": ("png",)}).source.extensions == ("png",)


def test_keywords_of_other_types() -> None:
    import torch

    changed = read(
        INLINE,
        batch_size=np.int64(5),
        max_bad=np.float32(0.5),
        device=torch.device("cuda", 1),
        quarantine=Path("/q"),
    )
    assert (
        changed.loader.batch_size,
        changed.loader.max_bad,
        changed.loader.device,
        changed.loader.quarantine,
    ) == (5, 0.5, "gpu:1", Path("/q"))


@pytest.mark.parametrize(
    ("changes", "messages"),
    [
        (
            {"bacth_size": 3},
            ["'bacth_size=3': bacth_size: unknown key; did you mean 'batch_size'?"],
        ),
        (
            {"loader": {"sed": 3, "prefetch": 0}},
            [
                "'loader={'sed': 3, 'prefetch': 0}': loader.prefetch is 0, but should be "
                "at least 1",
                "'loader={'sed': 3, 'prefetch': 0}': loader.sed: unknown key; did you mean 'seed'?",
            ],
        ),
        (
            {"pipeline": ["decode", {"resize": {"size": (3, -4)}}, "resise"]},
            [
                "'pipeline=['decode', {'resize': {'size': (3, -4)}}, 'resise']': pipeline.1: "
                "resize.size.1 is -4, but should be at least 1",
                "'pipeline=['decode', {'resize': {'size': (3, -4)}}, 'resise']': pipeline.2: "
                "unknown step 'resise'; did you mean 'resize'?",
            ],
        ),
        (
            {"batch_size": "x" * 100},
            [
                f"'batch_size='{'x' * 45}...': loader.batch_size is '{'x' * 56}..., but "
                "should be a "
                "whole number"
            ],
        ),
    ],
    ids=str,
)
def test_a_wrong_keyword_is_named_itself(changes: dict[str, Any], messages: list[str]) -> None:
    assert mistakes(INLINE, **changes) == messages


# Configs as dicts


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
        "least 0 for [-a, a], or [least, most]",
        "'seed=-1': loader.seed is -1, but should be at least 0",
    ]
    assert mistakes({"data": None}) == [
        "config: data is empty, but should be keys with values (where the samples are: "
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


# Whatever is written, it is a config or a message

WORDS = st.sampled_from(
    [
        "folder",
        "lfw",
        "/x",
        "auto",
        "",
        "decode",
        "resize",
        "affine",
        "ten",
        "${oc.env:NOT_SET}",
        "${data.root}",
        "???",
        "gpu:0",
        "é",
    ]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from([0.5, -1.5, 1e9, float("inf"), float("nan"), 2**70])
    | WORDS
)
KEYS = st.sampled_from(
    [
        "data",
        "pipeline",
        "loader",
        "source",
        "root",
        "fetch",
        "extensions",
        "stand_in",
        "shard",
        "rank",
        *config.LoaderConfig.model_fields,
        "decode",
        "resize",
        "random_affine",
        "normalize",
        "pad",
        "size",
        "degrees",
        "fill",
        "mean",
        "std",
        "padding",
        "scale",
        "zzz",
        "1",
    ]
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
STEP_TREES = st.dictionaries(
    st.sampled_from(
        [
            "decode",
            "resize",
            "random_affine",
            "normalize",
            "pad",
            "to_dtype",
            "random_crop",
            "center_crop",
            "resise",
        ]
    ),
    st.dictionaries(KEYS, TREES, max_size=3) | TREES,
    min_size=1,
    max_size=1,
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "data": st.fixed_dictionaries(
            {"source": st.just("folder") | SCALARS, "root": WORDS},
            optional={"fetch": TREES, "extensions": TREES, "zzz": TREES},
        )
        | TREES,
        "pipeline": st.lists(STEP_TREES | TREES | st.just("decode"), max_size=5) | TREES,
        "loader": st.dictionaries(KEYS, TREES, max_size=6) | TREES,
        "zzz": TREES,
    },
)
FREELY = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=100,
)


def config_or_complaint(given_: Any, overrides: list[str], changes: dict[str, Any]) -> None:
    try:
        config.read(given_, overrides, **changes)
    except ConfigError as e:
        said = [str(p) for p in e.problems]
        assert said
        assert not [p.what for p in e.problems if JARGON.search(p.what)]
        if not isinstance(given_, dict):
            assert all(re.match(r"c\.yaml:\d+:\d+: |'", s) for s in said)
        else:
            assert all(s.startswith(("config: ", "'")) for s in said)


@FREELY
@given(
    CONFIGS,
    st.lists(st.tuples(st.lists(KEYS, min_size=1, max_size=3), WORDS), max_size=2),
    st.dictionaries(KEYS, TREES, max_size=2),
)
@example({"pipeline": [{"resize": {"size": [2.5, -3]}}]}, [], {})
def test_any_dict_is_a_config_or_a_complaint(
    tree: dict[str, Any], overrides: list[tuple[list[str], str]], changes: dict[str, Any]
) -> None:
    config_or_complaint(tree, [f"{'.'.join(keys)}={value}" for keys, value in overrides], changes)


GOOD = INLINE + "  seed: 3\n  shard: {rank: 0, world_size: 2}\n  device: cpu\n"


@FREELY
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(GOOD)),
            st.integers(0, 6),
            st.text("ab1-:[]{}, \n'\"&*!#$", max_size=4),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_typing_slip_is_a_config_or_a_complaint(slips: list[tuple[int, int, str]]) -> None:
    text = GOOD
    for at, removed, put in slips:
        text = text[:at] + put + text[at + removed :]
    Path("c.yaml").write_text(text)
    config_or_complaint("c.yaml", [], {})
