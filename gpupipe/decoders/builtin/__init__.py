"""The built-in decoders, one per file: NAME.py holds `loader: {decoder: NAME}`.

A decoder imports the contract (gpupipe.decoders.decoder), parsers of headers
(gpupipe.decoders.image_header), and no other decoder. Nothing but the CPU engine's one-call
path for JPEGs imports one by its module: gpupipe.decoders.chain.DECODERS finds it by its name.
Start reading in pillow.py.
"""
