"""The data sets that gpupipe can fetch, and drawn images that stand in where it cannot.

The folder source and the command `gpupipe fetch` import it. Begin to read in dataset_catalog.py.
"""
