"""Downloads data sets, or draws synthetic images if a download fails.

The folder source and the command `gpupipe fetch` import it. Start reading in dataset_catalog.py.
"""
