"""The versions on which the pixels of a batch depend, and how those of two nodes differ."""

from __future__ import annotations

from collections.abc import Mapping

from gpupipe.runtime.installation import installed_version, own_version

_PACKAGES = {
    "DALI": ("nvidia-dali-cuda120", "nvidia-dali-cuda130"),
    "torchvision": ("torchvision",),
}


def list_versions() -> dict[str, str]:
    """Return the installed version by package, "none" if it is missing."""
    found = {
        name: installed_version(distributions) or "none"
        for name, distributions in _PACKAGES.items()
    }
    return {"gpupipe": own_version(), **found}


def explain_difference(
    one: Mapping[str, str], one_node: str, other: Mapping[str, str], other_node: str
) -> str:
    """Return how the versions of two nodes differ, or ""."""
    differences = [
        f"{name} is {one[name]} on {one_node} and {other.get(name, 'none')} on {other_node}"
        for name in one
        if one[name] != other.get(name, "none")
    ]
    return "; ".join(differences)
