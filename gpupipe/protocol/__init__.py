"""The protocol that a data processing server and its clients share: messages and transport.

`messages` defines everything that goes over a socket, `codec` encodes and validates it,
`batch_layout` says where the fields of a batch are. `shared_memory` transports batches on one
machine, `batch_bytes` packs them for a socket. `sockets` binds, connects and wakes, and finds out
what listens at an address; `keys` handles CURVE keys, `processes` identifies processes. Server and
client import this folder, and it imports neither. Start reading in messages.py.
"""
