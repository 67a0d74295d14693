"""Parsers of file formats: they take bytes and return byte ranges or values.

A parser raises ValueError, with the location of the fault, if it cannot parse a file. It never
executes code from a file. Each module parses one format, or one layer of it: framing, protobuf and
example together parse TFRecord. Sources, steps and engines import this folder. Image files are
decoded in gpupipe.decoders instead. Start reading in tar.py.
"""


class DamagedError(ValueError):
    """A file is truncated, damaged or of another format."""
