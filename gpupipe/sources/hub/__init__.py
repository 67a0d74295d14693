"""Helpers of the source hf, which reads data sets of Hugging Face.

`hub_files` finds the files of a split. `row_groups` reads images out of Parquet files, and keeps
them in memory or in the cache folder. The source and `gpupipe init` import this folder. Start
reading in hub_files.py.
"""
