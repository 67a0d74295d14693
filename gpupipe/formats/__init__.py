"""Parsers of files with many samples: bytes in, places of bytes out.

What cannot be taken raises ValueError with the place; nothing is executed.
"""


class Damaged(ValueError):
    """A file that is cut off, damaged, or of another format."""
