"""List the files of a store that is a folder."""

import os


def list_store(path: str) -> tuple[list[str], list[int]]:
    """Return the paths of all files of a store, relative to it and sorted, and their sizes."""
    found: list[tuple[str, int]] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(os.path.join(path, folder)) as entries:
            for entry in entries:
                name = f"{folder}{entry.name}"
                if entry.is_dir():
                    folders.append(f"{name}/")
                elif entry.is_file():
                    found.append((name, entry.stat().st_size))
    found.sort()
    return [name for name, _ in found], [size for _, size in found]
