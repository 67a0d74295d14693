"""Parsers of file formats: they take bytes and return byte ranges or values.

A file that cannot be parsed raises ValueError with the location of the fault. Parsers execute
nothing that a file contains. Each module parses one format, or one layer of it: tfrecord is
framing, protobuf and example. Sources, steps and engines import this folder. Start reading in
tar.py. Image files are not among them: see gpupipe.decoders.
"""


class DamagedError(ValueError):
    """A file is truncated, damaged or of another format."""
