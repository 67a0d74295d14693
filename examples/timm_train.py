"""timm's own train.py, with gpupipe.timm.create_loader in place of timm.data.create_loader.

python examples/timm_train.py TRAIN_PY [the arguments of train.py]

The script is no part of timm's package: TRAIN_PY is a copy from timm's repository.
"""

import runpy
import sys
from pathlib import Path

import timm.data

import gpupipe.timm


def main() -> None:
    """Run the script."""
    script, *arguments = sys.argv[1:] or [""]
    if not Path(script).is_file():
        sys.exit("usage: python timm_train.py TRAIN_PY [the arguments of train.py]")
    create = gpupipe.timm.create_loader
    timm.data.create_loader = create  # pyright: ignore[reportPrivateImportUsage]
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
