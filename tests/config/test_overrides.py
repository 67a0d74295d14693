from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe import config
from gpupipe.steps.decode import Decode
from gpupipe.steps.random_flips import RandomHorizontalFlip
from gpupipe.steps.random_warps import RandomAffine
from gpupipe.steps.resize import Resize
from helpers.config_texts import DATA, INLINE, STEPS, mistakes, read


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
        ("drop_last=true", "drop_last: unknown key; write last_batch: drop"),
        ("root=/y", "root: unknown key; did you mean 'data.root'?"),
        ("dat.root=/y", "dat: unknown key; did you mean 'data.root'?"),
        ("rank=1", "rank: unknown key; did you mean 'shard.rank'?"),
        (
            "zzzz=1",
            "zzzz: unknown key; known: data, pipeline, batch, loader, and what stands in them, "
            "such as data.root",
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
        ("loader=3", "loader is 3, but should be a mapping, such as {batch_size: ...}"),
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


def test_overrides_reach_into_a_named_pipeline(tmp_path: Path) -> None:
    named = DATA + "pipeline: affine\n"
    entries = read(named, "pipeline.1.random_affine.degrees=10").pipeline.entries
    first, changed, *others = read(named).pipeline.entries
    assert entries[1].step == changed.step.model_copy(update={"degrees": (-10, 10)})
    assert [e.step for e in (entries[0], *entries[2:])] == [e.step for e in (first, *others)]
    other = read(named, "pipeline=imagenet_eval", "pipeline.1.resize.size=64").pipeline
    assert other.entries[1].step == Resize(size=64), "of the pipeline that an override names"
    beside = tmp_path / "mine"
    (beside / "pipelines").mkdir(parents=True)
    (beside / "pipelines/own.yaml").write_text("- decode\n- resize: &a {size: 9}\n- resize: *a\n")
    (beside / "c.yaml").write_text(DATA + "pipeline: own\n")
    own = config.read(beside / "c.yaml", ["pipeline.1.resize.size=8"]).pipeline
    assert [e.step for e in own.entries[1:]] == [Resize(size=8), Resize(size=9)]


def test_mistakes_in_overrides_of_a_named_pipeline() -> None:
    named = DATA + "pipeline: affine\n"
    assert mistakes(named, "pipeline.2.resize.size=10") == [
        "'pipeline.2.resize.size=10': pipeline.2 is not 'resize' but 'to_dtype'"
    ]
    Path("pipelines").mkdir()
    Path("pipelines/own.yaml").write_text("- decode\n- resize: {size: 0}\n")
    assert mistakes(DATA + "pipeline: own\n", "pipeline.0.decode.mode=gray") == [
        "pipelines/own.yaml:2:18: resize.size is 0, but should be at least 1"
    ]
    (unknown,) = mistakes(DATA + "pipeline: owm\n", "pipeline.0.decode.mode=gray")
    assert unknown.startswith("2:11: no pipeline 'owm'"), "once, where it stands"


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
