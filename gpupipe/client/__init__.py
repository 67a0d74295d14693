"""The client's side of a connection to a data processing server.

`connection` has the thread, the socket and the methods that the consumer calls. `receiver` handles
the messages that arrive, and joins the pieces of a batch. `session` and `iteration` are plain
state, without sockets, threads or clocks: the client's half of the session, the pass that it reads,
and the batches that it holds. The remote engine imports this folder. Start reading in
connection.py.
"""
