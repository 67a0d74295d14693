"""Helpers of single sources. The commands `gpupipe fetch` and `gpupipe init` import some too.

`dataset_catalog` downloads data sets for the source folder, or draws images that stand in for them.
`hub_files` finds the files of a split for the source hf, and `row_groups` reads images out of
Parquet files. Start reading in dataset_catalog.py.
"""
