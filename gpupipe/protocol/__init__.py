"""The protocol that a data processing server and its clients share: messages and transport.

`messages` defines everything that goes over a socket, `codec` encodes and validates it,
`batch_layout` says where the fields of a batch are. `shared_memory` transports batches on one
machine, `tensors` and `compression` pack them for a socket. `processes` identifies processes,
`keys` handles CURVE keys, `peer` finds out what listens at an address, `wakeup` wakes a polling
thread. Server and client import this folder, and it imports neither. Start reading in messages.py.
"""
