"""The protocol that a data processing server and its clients share: messages and transport.

`messages` defines everything that goes over a socket. `shared_memory` transports batches on one
machine, `tensors` and `compression` pack them for a socket. `keys` handles CURVE keys, `peer` finds
out what listens at an address, `wakeup` wakes a polling thread. Server and client import this
folder, and it imports neither. Start reading in messages.py.
"""
