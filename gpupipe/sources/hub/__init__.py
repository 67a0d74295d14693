"""What the source hf needs: the files of a split, and the images in their row groups.

`hub_files` finds the files. `row_groups` reads images out of Parquet files, and keeps them in the
cache folder. The source and `gpupipe init` import this folder. Start reading in hub_files.py.
"""
