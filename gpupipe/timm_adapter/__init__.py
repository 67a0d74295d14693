"""Turns the arguments of timm.data.create_loader into a config, for gpupipe.timm.

`transform_steps` has the steps that do what timm's create_transform does; `arguments` reads the
others, and refuses those that cannot be honoured. Both import timm on use. Start reading in
transform_steps.py.
"""
