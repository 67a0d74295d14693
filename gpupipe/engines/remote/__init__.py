"""The remote engine: batches come from a data processing server, or from several in turn.

`engine` receives batches through gpupipe.client, `welcome` describes the served data set to
clients, and `turns` orders the batches of several servers. The loader imports the folder by name.
Start reading in engine.py.
"""
