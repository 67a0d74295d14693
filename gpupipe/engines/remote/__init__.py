"""The remote engine: batches come from a data processing server, or from several in turn.

`engine` receives them through gpupipe.client, `welcome` is what a server tells first, `turns`
orders the batches of several servers. The loader imports it by name. Begin to read in engine.py.
"""
