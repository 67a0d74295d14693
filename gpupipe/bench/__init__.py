"""Measurements, and the tables, plots and reports of them.

`measure` times one loader (`gpupipe run`); `compare` times several sides in turn, each in a process
that `contestant` runs; `comparison` holds the result with its verdict, and `report` writes it.
`parity` compares pixels, `profile` and `training` find what limits, `tune` searches settings,
`gallery` draws what steps do. Only gpupipe.cli imports this folder. Start reading in measure.py.
"""
