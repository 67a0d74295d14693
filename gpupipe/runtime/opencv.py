"""Whether OpenCV is installed, in a version whose pixels are those that the CPU engine delivers."""

from __future__ import annotations

import warnings

from gpupipe.runtime.installation import install_command

_OLDEST = 5
"""The first version with an affine warp that is within a level of torchvision's."""


def has_opencv() -> bool:
    """Return whether OpenCV can be used. Warns if it is installed, but too old."""
    try:
        import cv2
    except ModuleNotFoundError as e:
        if e.name != "cv2":
            raise
        return False
    version: str = cv2.__version__
    if int(version.partition(".")[0]) >= _OLDEST:
        return True
    warnings.warn(
        f"the engine cpu does not use OpenCV {version}, whose warps are less exact than those of "
        f"OpenCV {_OLDEST}: torchvision does its work, more slowly. Run {install_command('cpu')}",
        stacklevel=2,
    )
    return False
