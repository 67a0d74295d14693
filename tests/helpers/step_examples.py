"""Every step as tests run it on tensors, without an engine: images that it takes, and what it
draws.
"""

from typing import Any

import numpy as np

from gpupipe.dataset.spec import Spec
from gpupipe.errors import ConfigError
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.step import Step
from gpupipe.schema.document import Document
from helpers.every_step import FEW_PIXELS, LINEAR, STEPS

CASES = [(name, options) for name, every in STEPS.items() for options in every]


def givens(name: str, options: dict[str, Any]) -> list[Spec]:
    """Images of levels and of floats, as far as the step takes them."""
    found = []
    height, width = FEW_PIXELS if name in LINEAR else (40, 50)
    for dtype in ("uint8", "float32"):
        given = Spec.of_image(3, height, width, dtype=dtype)
        try:
            resolved(name, options, given)
        except ConfigError:
            continue
        found.append(given)
    return found


def resolved(name: str, options: dict[str, Any], given: Spec) -> Step:
    """The step of a pipeline whose only field is such an image."""
    document = Document("example", [{name: options}])
    return build_pipeline("example", document, fields={"image": given}).entries[0].step


def drawn(name: str, options: dict[str, Any], given: Spec) -> tuple[Any, dict[str, Any]]:
    """The step, and what it draws for one sample."""
    step = resolved(name, options, given)
    values = step.sample(np.full((1, step.num_uniforms), 0.3)) if step.num_uniforms else {}
    return step, {key: value[0] for key, value in values.items()}
