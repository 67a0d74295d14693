"""The client's side of a connection to a data processing server.

`connection` has the thread, the socket and the methods that the consumer calls. `session` and
`reading` are plain state, without sockets, threads or clocks: the client's half of the session, the
pass that it reads, the batches that it holds, and the batch that arrives in pieces. The remote
engine imports this folder. Start reading in connection.py.
"""
