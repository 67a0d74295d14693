"""Layouts of arrays: a letter for each axis, such as "CHW"."""

from functools import lru_cache

KNOWN_AXES = "CDHWL"
"""Channels, and the spatial axes. Steps leave axes of any other letter alone."""
_SPACES = ("DHW", "HW", "L")
_DEFAULTS = ("", "L", "HW", "CHW", "CDHW")
_FURTHER = "ABEFGIJKMNOQRSTUVXYZ"


def spatial_axes(layout: str) -> str:
    """Return the spatial axes of a layout, such as "HW" for "CHW"."""
    return "".join(axis for axis in layout if axis in "DHWL")


@lru_cache(maxsize=256)
def canonical_layout(layout: str) -> str:
    """Return the order of the axes in the torch tensors that steps get, as letters.

    First come axes that are neither C nor spatial, then C, then the spatial axes. The result always
    has C. This axis has length 1 in the tensors if `layout` lacks it.
    """
    others = "".join(axis for axis in layout if axis not in KNOWN_AXES)
    return f"{others}C{spatial_axes(layout)}"


def default_layout(axes: int) -> str:
    """Return the default layout of arrays: "", L, HW, CHW or CDHW for 0 to 4 axes.

    For more axes, the layout has letters that steps leave alone.
    """
    return _DEFAULTS[axes] if axes < len(_DEFAULTS) else _FURTHER[:axes]


def explain_wrong_layout(layout: str, axes: int | None = None) -> str:
    """Return why a layout is invalid for arrays with `axes` axes; "" if it is valid."""
    if not all("A" <= axis <= "Z" for axis in layout) or len(set(layout)) < len(layout):
        return (
            f"layout is {layout!r}, but should be a letter from A to Z for each axis, each "
            "another, such as CHW"
        )
    spatial = spatial_axes(layout)
    if spatial and (spatial not in _SPACES or spatial not in layout):
        return (
            f"layout is {layout!r}, but the axes of space should be HW, DHW or L, in this order "
            "and next to each other"
        )
    if axes is not None and len(layout) != axes:
        return f"layout is {layout!r}, for {len(layout)} axes, but the arrays have {axes}"
    return ""
