"""Turns the arguments of timm.data.create_loader into a config, for gpupipe.timm.

`transform_steps` builds the steps that replace timm's create_transform. `arguments` reads the
arguments that are not about steps, and refuses those that gpupipe cannot honour. Both import timm
only when called. Start reading in transform_steps.py.
"""
