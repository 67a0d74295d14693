"""Parsers of file formats: they take bytes and return byte ranges or values.

A parser raises ValueError, with the location of the fault, if it cannot parse a file. It never
executes code from a file. Each module parses one format, or one layer of it: framing, protobuf and
example together parse TFRecord. Sources, steps and engines import this folder. Image files are
decoded in gpupipe.decoders instead. Start reading in tar.py.
"""


class DamagedError(ValueError):
    """A file is truncated, damaged or of another format."""


def check_size(size: int, max_bytes: int, where: str = "") -> None:
    """Raise ValueError if an image file in a container is larger than the user allows.

    Args:
        size: The size of the image file in bytes, as declared or after inflating.
        max_bytes: The maximum; 0 for no limit.
        where: The image's location in the container, for the message.
    """
    if max_bytes and size > max_bytes:
        raise ValueError(
            f"{where}an image file of {size:,} bytes, more than data.max_bytes={max_bytes:,}"
        )
