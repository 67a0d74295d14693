"""The protocol that a data processing server and its clients share: messages and transport.

`messages` defines the messages, `codec` encodes and validates them, `batch_layout` computes the
byte offset of each field of a batch. `shared_memory` transports batches on one machine,
`batch_bytes` packs them for a socket. `sockets` binds and connects sockets, and finds out which
program listens at an address. `keys` handles CURVE keys, `processes` identifies processes. Server
and client import this folder, and it imports neither. Start reading in messages.py.
"""
