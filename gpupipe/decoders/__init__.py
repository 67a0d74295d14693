"""Decoders of image files: bytes of one image in, pixels out.

Sources, steps and engines import this folder, which imports only gpupipe.runtime and
gpupipe.errors. Start reading in image_header.py.
"""
