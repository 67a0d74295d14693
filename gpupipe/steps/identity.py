"""identity: leave everything as it is."""

from __future__ import annotations

from typing import Any

from gpupipe.pipeline.step import Params, Primitives, Step


class Identity(Step):
    """Leave everything as it is, as torchvision.transforms.v2.Identity.

    It takes no time. In random_choice it is the alternative that changes nothing.
    """

    def lower(self, image: Primitives, p: Params) -> None:
        """Call no primitive."""

    def torch(self, image: Any, p: Params) -> Any:
        return image
