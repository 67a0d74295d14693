"""Turns torchvision transforms into the steps of a pipeline: gpupipe.from_torchvision().

A class of torchvision.transforms.v2 is adapted by one rule: the step has the name of the class in
snake_case, and the step's parameters are the object's attributes of the same names (`parameters`).
Only containers, changes of dtype, and classes without a counterpart are handled by name
(`adapter`).
gpupipe/__init__.py imports this folder, and with it torchvision, on first use. Start reading in
adapter.py.
"""
