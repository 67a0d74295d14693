"""DALI's names for the layouts of arrays.

DALI's operators take layouts such as HWC, CHW and FCHW, and leave other axes no place. Every layout
that steps accept (is_video_like and has_channel_layout of spec_checks) has a name here.
"""

from __future__ import annotations

from gpupipe.dataset.spec import spatial_axes


def video_layout(layout: str) -> str | None:
    """Return DALI's name for a layout with spatial axes, or None if it has none.

    The names are HWC, CHW, FCHW, FHWC, and the same with DHW or L in place of HW. A layout of
    spatial axes alone is named as if a channel axis followed, which the caller adds.
    """
    before, _, after = layout.partition(spatial_axes(layout))
    names = {(0, 0): "{}C", (1, 0): "C{}", (2, 0): "FC{}", (0, 1): "{}C", (1, 1): "F{}C"}
    name = names.get((len(before), len(after)))
    return None if name is None else name.format(spatial_axes(layout))


def channel_layout(layout: str) -> tuple[str, list[int]] | None:
    """Return the layout in which DALI normalizes per channel, or None if it has none.

    Returns:
        DALI's name for the layout, and the positions where axes of length 1 must be inserted.
    """
    before, after = layout.partition("C")[::2] if "C" in layout else (layout, "")
    if not after:
        more = max(0, 2 - len(before))
        name = {2: "HWC", 3: "DHWC", 4: "FDHWC"}.get(len(before) + more)
        return (
            None
            if name is None
            else (name, [*range(more), *([] if "C" in layout else [len(before) + more])])
        )
    more = max(0, 2 - len(after))
    name = {(0, 2): "CHW", (0, 3): "CDHW", (1, 2): "FCHW", (1, 3): "FCDHW"}.get(
        (len(before), len(after) + more)
    )
    return None if name is None else (name, [len(layout) + n for n in range(more)])
