"""The client's side of a connection to a data processing server.

Each connection has its own thread. `connection` talks to the server, `dialing` opens the socket,
`inbox` holds batches until the consumer takes them, `reassembly` puts pieces of batches together.
The remote engine imports this folder. Begin to read in connection.py.
"""
