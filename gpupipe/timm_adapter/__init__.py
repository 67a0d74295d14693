"""Turns the arguments of timm.data.create_loader into a config, for gpupipe.timm.

`transform_steps` has the steps that do what timm's create_transform does; `samples` makes an index
of timm's dataset; `refusals` names the arguments that cannot be honoured. Only `samples` imports
timm. Start reading in transform_steps.py.
"""
