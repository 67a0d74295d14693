"""Pauses Python's collection of garbage while modules are imported."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_collection() -> Iterator[None]:
    """Collect no garbage in the context.

    Imports leave none behind. But they make so many objects that a collection of all begins, which
    takes 0.1 to 0.3 s with torch's in memory. It does not begin after the context either: what is
    in memory then counts as old, as after a collection. Where nothing was imported, nothing is
    done, since gc.get_freeze_count() counts one by one what a program has frozen.
    """
    was_enabled, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            has_imported = len(sys.modules) > modules
            if has_imported and not gc.get_freeze_count():  # what the program has frozen stays so
                gc.freeze()
                gc.unfreeze()
            gc.enable()
