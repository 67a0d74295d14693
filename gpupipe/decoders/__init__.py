"""Decoders of image files: bytes of one image in, pixels out.

`decoder` is the contract, and `chain` is what engines and steps call: it asks the decoders in their
order, and holds the rules that all of them share. `builtin/` has one decoder per file. Headers are
parsed in `image_header`. This folder imports only gpupipe.runtime and gpupipe.errors.
Start reading in chain.py.
"""
