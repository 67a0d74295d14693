"""The data processing server: makes batches in its own process, for training processes on this
machine or others. The command line and the package's top level import this folder.

    Server (service.py)                   the socket, the lock, start and stop
      ├─ Dispatcher (dispatch.py)           passes a client's messages to the sessions, and answers
      ├─ Sessions (sessions.py)             a client joins (`open`), is silent, leaves, iterates
      │    ├─ BatchLeases (batch_leases.py)   a batch is leased, acknowledged, requeued
      │    ├─ PassSchedule (pass_schedule.py)   an epoch pass starts and ends (`settle_all`)
      │    └─ LeaseState (lease_state.py)     `commit` applies a record and logs it
      ├─ WriteAheadLog (write_ahead_log.py) the log of its records, and their replay
      ├─ Producer (producer.py)             the thread that makes batches of plans (served_work.py)
      ├─ Connections (connections.py)       sends messages and batches
      └─ FloodGuard (flood_guard.py)        cuts connections that send too much

`start` runs a server, in this process or in a child process. `options` validates the options of a
server, `metrics` reports its counters and rates, `fuel` serves Fuel's protocol instead. The state
of a client and of a pass is in clients_and_passes.py. `Sessions` and the three parts below it need
no sockets, threads or clocks. Start reading in batch_leases.py, which has the rules of the protocol
and its terms, then in service.py.
"""
