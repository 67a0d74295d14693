"""Parsers of file formats: they take bytes and return byte ranges, headers or pixels.

A file that cannot be parsed raises ValueError with the location of the fault. Parsers execute
nothing that a file contains. Each module parses one format, or one layer of it: tfrecord is
framing, protobuf and example. `pillow_decoder` decodes images that no other decoder takes. Sources,
steps and engines import this folder. Start reading in tar.py.
"""


class Damaged(ValueError):
    """A file is truncated, damaged or of another format."""


class CannotDecode(RuntimeError):
    """The image is damaged, too large, or of a kind that has no meaning as pixels."""
