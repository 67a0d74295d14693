"""The built-in decoders, one per file: NAME.py holds `loader: {decoder: NAME}`.

A decoder imports the contract (gpupipe.decoders.decoder) and parsers of headers
(gpupipe.decoders.image_header), but no other decoder. gpupipe.decoders.chain.DECODERS finds a
decoder by name. Only the compiled kernels of the CPU engine import the module of a decoder,
jpeg_window. Start reading in pillow.py.
"""
