"""Keeps libtiff from writing its errors to stderr: Pillow raises them as exceptions, too.

Pillow turns off libtiff's warnings, but not its errors: each damaged strip of a TIFF is a line on
stderr that names no file.
"""

import ctypes
import functools
from pathlib import Path

import PIL


@functools.cache
def silence_errors() -> bool:
    """Turn off the error lines of the libtiff that Pillow's wheel brings, in this process.

    Returns:
        Whether there is such a libtiff. A Pillow that was built on this machine has none.
    """
    package = Path(PIL.__file__).parent
    folders = package.parent / "pillow.libs", package / ".dylibs"
    libraries = [path for folder in folders for path in folder.glob("libtiff*")]
    for path in libraries:
        # Pillow has loaded it: this returns a handle of the same copy.
        set_handler = ctypes.CDLL(str(path)).TIFFSetErrorHandler
        set_handler.argtypes, set_handler.restype = [ctypes.c_void_p], ctypes.c_void_p
        set_handler(None)
    return bool(libraries)
