"""Turns Ultralytics' hyperparameters into the steps of a pipeline: gpupipe.from_ultralytics().

    hyperparameters   the parameters of a file, with the defaults of Ultralytics
    adapter           the steps that they stand for

gpupipe/__init__.py imports this folder on first use. The package ultralytics is not needed. Start
reading in adapter.py.
"""
