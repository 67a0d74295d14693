"""Parsers of files with many samples: bytes in, places of bytes out. What is malformed raises ValueError with the place; nothing is executed."""
