"""Templates of keys, such as "image-{id}" or "{class}/{name}.jpg"."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class KeyTemplate:
    """A key with placeholders, each of which stands for one or more characters.

    Attributes:
        text: The template as it is written.
        names: The names of its placeholders, in order.
    """

    def __init__(self, text: str) -> None:
        """Parse a template. Raises ValueError if it is none."""
        self.text, self.names = text, _PLACEHOLDER.findall(text)
        rest = _PLACEHOLDER.sub("", text)
        if "{" in rest or "}" in rest or len(set(self.names)) != len(self.names):
            raise ValueError(
                f"'{text}' is no template: a placeholder is {{name}}, and none stands twice"
            )
        parts = _PLACEHOLDER.split(text)
        pattern = "".join(
            f"(?P<p_{part}>.+?)" if n % 2 else re.escape(part) for n, part in enumerate(parts)
        )
        self._pattern = re.compile(pattern, re.DOTALL)

    def match(self, key: str) -> dict[str, str] | None:
        """Return what each placeholder stands for in a key; None if the key does not fit."""
        found = self._pattern.fullmatch(key)
        if found is None:
            return None
        return {name.removeprefix("p_"): text for name, text in found.groupdict().items()}

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the key in which each placeholder has its value."""
        return _PLACEHOLDER.sub(lambda found: values[found[1]], self.text)

    @property
    def is_part(self) -> bool:
        """Whether the template is a single placeholder and nothing else."""
        return bool(_PLACEHOLDER.fullmatch(self.text))
