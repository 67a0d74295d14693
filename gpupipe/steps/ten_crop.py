"""ten_crop: cut out the four corners and the centre, and those of the mirrored image."""

from __future__ import annotations

from gpupipe.pipeline.geometry_step import MultiCrop


class TenCrop(MultiCrop):
    """Cut out five crops, and five of the mirrored image, as torchvision.transforms.v2.TenCrop.

    It is the first step of a view with `count: 10`, whose fields are the crops in torchvision's
    order: top left, top right, bottom left, bottom right, centre; then these of the mirrored image.
    An image smaller than `size` is an error.

    Attributes:
        size: One number for a square, or [height, width], in pixels. Each side is 1 to 65535.
        crop: The index of the crop, 0 to 9. By default field n of the view gets crop n.
        vertical_flip: Swap top and bottom for the mirrored image, not left and right. The default
            is false.
    """

    vertical_flip: bool = False

    num_views = 10

    @property
    def mirrored_axis(self) -> int:
        """The axis along which the later crops are mirrored: 0 for height, 1 for width."""
        return 0 if self.vertical_flip else 1
