"""The protocol that a data processing server and its clients share: messages and transport.

`messages` defines the messages, `codec` encodes and validates them. `batch_bytes` computes the byte
offset of each field of a batch, and packs batches for a socket; `shared_memory` transports them on
one machine. `sockets` binds and connects sockets, and finds out which program listens at an
address. `peers` identifies the other side, by keys and processes. The server and
engines/remote import this folder, which imports neither of them. Start reading in messages.py.
"""
