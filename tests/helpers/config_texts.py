"""Texts of configs, and what is wrong with a config. Tests of gpupipe/config use them."""

import re
from pathlib import Path
from typing import Any

import pytest

from gpupipe import config
from gpupipe.config import Config
from gpupipe.errors import ConfigError

DATA = "data: {source: folder, root: /x}\n"
STEPS = "pipeline: [decode]\n"
LOADER = DATA + STEPS + "loader:\n  "
JARGON = re.compile(
    r"Input|type=|literal_error|PosixPath|NoneType|None\b|<class|validation"
    r"|(?<!')tuple|dictionary|instance "
    r"of|pydantic|Traceback|Errno",
    re.IGNORECASE,
)


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


INLINE = (
    "data: {source: folder, root: /x, fetch: lfw}\npipeline:\n  - decode\n  - "
    "random_affine: {degrees: 3, scale: [1, 2]}\n  - random_horizontal_flip\n"
    "loader:\n  batch_size: 8\n"
)
