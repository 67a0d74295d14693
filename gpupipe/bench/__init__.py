"""Measurements, and the tables, plots and reports of them.

`measure` times one loader (`gpupipe run`), `compare` several in turn, `parity` compares pixels,
`profile` and `training` find what limits, `tune` searches settings. Only gpupipe.cli imports this
folder. Start reading in measure.py.
"""
