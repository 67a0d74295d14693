"""The client's side of a connection to a data processing server.

`connection` has the thread, the socket and the calls of the consumer, `receiver` handles what
arrives. `session`, `iteration` and `inbox` are plain state, without sockets, threads or clocks.
`served_work` compares what servers serve, `reassembly` joins the parts of a batch, `dialing` opens
the socket. The remote engine imports this folder. Start reading in connection.py.
"""
