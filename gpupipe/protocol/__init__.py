"""What a data processing server and its clients share: messages, and how bytes travel.

`messages` are all that goes over a socket; `shared_memory` is the way on one machine, `tensors` and
`compression` pack batches, `keys` are CURVE's. Server and client import it, and it imports neither.
Begin to read in messages.py.
"""
