"""The built-in decoders, one per file: NAME.py holds the decoder of `loader: {decoder: NAME}`.

A decoder imports the contract (gpupipe.decoders.decoder) and parsers of headers
(gpupipe.decoders.image_header), but no other decoder. gpupipe.decoders.chain.DECODERS finds a
decoder by name. No other code imports a decoder's module, except that the compiled kernels of the
CPU engine import jpeg_window. Start reading in pillow.py.
"""
