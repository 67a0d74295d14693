"""Whatever is written, it is a config or a message."""

import re
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpupipe import config
from gpupipe.errors import ConfigError
from helpers.config_texts import INLINE, JARGON

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
        "batch",
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
        "mixup",
        "random_choice",
        "transforms",
        "alpha",
        "on",
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
BATCH_TREES = st.dictionaries(
    st.sampled_from(["mixup", "cutmix", "one_hot", "random_choice", "resize", "mixpu"]),
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
        "batch": st.lists(BATCH_TREES | TREES | st.just("mixup"), max_size=3) | TREES,
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
