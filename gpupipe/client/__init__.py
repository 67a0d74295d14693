"""The client's side of a connection to a data processing server.

Each connection has its own thread. `connection` talks to the server: it receives batches, and
acknowledges each one that the consumer is done with. `dialing` opens the socket, `inbox` holds
batches until the server has confirmed their acknowledgement, `reassembly` puts pieces of batches
together. The remote engine imports this folder. Start reading in connection.py.
"""
