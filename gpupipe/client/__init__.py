"""The client's side of a connection to a data processing server.

A connection has a thread of its own: `connection` talks to the server, `dialing` finds it, `inbox`
holds batches until the consumer takes them, `reassembly` puts pieces of batches together.
The remote engine imports this folder. Begin to read in connection.py.
"""
