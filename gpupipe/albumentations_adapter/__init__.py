"""Turns Albumentations' transforms into the steps of a pipeline: gpupipe.from_albumentations().

    counterparts   the step of each class that has one, and how its parameters are read
    containers     the same for OneOf, SomeOf and others
    items          steps in YAML form
    calling        the object that a step `python` calls where there is none
    adapter        goes through a Compose

gpupipe/__init__.py imports this folder on first use. Albumentations is no dependency: a user
who has a Compose has it. Start reading in adapter.py.
"""
