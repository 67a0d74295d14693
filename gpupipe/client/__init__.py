"""The client's side of a connection to a data processing server.

`connection` has the thread, the socket and the calls of the consumer. `receiver` handles what
arrives, and joins the parts of a batch. `session` and `iteration` are plain state, without sockets,
threads or clocks: what the client knows of the server, which pass it reads, and the batches that it
holds. The remote engine imports this folder. Start reading
in connection.py.
"""
