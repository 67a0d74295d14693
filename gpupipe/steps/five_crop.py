"""five_crop: cut out the four corners and the centre, as five fields of a view."""

from __future__ import annotations

from gpupipe.pipeline.geometry_step import MultiCrop


class FiveCrop(MultiCrop):
    """Cut out the four corners and the centre, as torchvision.transforms.v2.FiveCrop.

    It is the first step of a view with `count: 5`, whose fields are the crops in torchvision's
    order: top left, top right, bottom left, bottom right, centre. An image smaller than `size` is
    an error.

    Attributes:
        size: One number for a square, or [height, width], in pixels. Each side is 1 to 65535.
        crop: The index of the crop, 0 to 4. By default field n of the view gets crop n.

    Example:
        ::

            pipeline:
              steps: [decode, {resize: {size: 256}}]
              views:
                crop: {count: 5, steps: [{five_crop: {size: 224}}]}
    """

    num_views = 5
