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
of a client and of a pass is in clients_and_passes.py. `Sessions` and the three parts below it hold
the rules that follow, without sockets, threads or clocks. Start reading there, then in service.py.

Terms:

- Pass (`EpochPass`, clients_and_passes.py): one pass over an epoch, or over the rest of one.
- Partition: a sequence of passes over the plans of one rank.
- Key: identifies a batch by the number of its pass and its step in that pass.
- Session (`Client`, clients_and_passes.py): the state that the server keeps of one client. A
  session survives reconnects and, with a state file, a restart of the server.

The rules. Together they make the clients consume every batch of a pass exactly once; rule 7 names
the only exception.

1. Fixed plans. All plans of a pass exist when it starts. The server makes a lost batch again from
   its plan, with the same samples and draws.
2. Lease. The server leases each batch to one client. It writes the lease to the write-ahead log
   (write_ahead_log.py) before it sends the batch. No other client gets a leased batch.
3. Acknowledge. The client acknowledges a batch (Acknowledge) when its consumer asks for the next
   one. The server logs the acknowledgement, then confirms it (Confirm).
4. Window. The client hands a batch to its consumer only while fewer than MAX_UNACKED earlier
   batches are unconfirmed (engines/remote/reading.py). So the consumer can have seen only the first
   MAX_UNACKED leases.
5. Heartbeat timeout. If the server hears nothing from a client for `heartbeat_timeout` seconds, it
   requeues all of its leases but the first MAX_UNACKED. The consumer cannot have seen those
   (rule 4). When the client is heard again, the server first says that they are revoked (Revoke, or
   SessionOpened).
6. Session end. The server requeues all leases of a client when its session ends: the client sends
   CloseSession, or its process on this machine has ended. The session also ends if the client is
   not heard for `session_timeout` seconds, or if the queue of messages to it is full. A client that
   ends its iteration (EndIteration or StartIteration) returns its leases too.
7. Late acknowledgement. A client may come back after the server ended its session. Its
   acknowledgement counts unless the batch is leased to another client by then. Only then can two
   live clients consume the same batch.
8. End of a pass. A pass ends when all of its steps are done. The server drops an unfinished pass if
   no client wants it and some client wants another one. Until then the pass's readers wait at its
   end, since the batches of a client that dies are requeued.
9. New client. If no other client has its partition, a new client starts at the first epoch, and the
   server forgets the unfinished pass. With the option `resume` the client continues that pass. If
   there are other clients, it joins their pass, and SessionOpened says how much of it is left.
10. Reconnect. A client sends OpenSession again after its connection or the server was replaced. The
    message names the batches that the client holds and those that it consumed. The server requeues
    leases whose batches never arrived, and the client drops batches that it no longer leases.
11. Order. The batches of a partition are leased in the order of its steps: one that is ready waits
    for earlier ones that were requeued. So a client that is alone in its partition gets its batches
    in order, and what it has consumed is all that comes before its position.
12. Stopped server. Clients that were connected when the server was stopped continue with the next
    one, as after a crash. If none of them comes within RETURN_SECONDS, the run has ended, and a new
    client starts at the first epoch.
13. Server without a record. A client that shared a pass with others does not continue it with a
    server of another history: it cannot know what the others consumed.

Partitions per mode:

- `share` has one partition for all clients: each batch goes to exactly one of them.
- `share` with `clients: N` has one partition for each of N ranks. All have equally many steps, as
  the shards of a DataLoader have.
- `broadcast` has one partition per client: every client gets every batch. Clients in the same epoch
  stay within `hwm` batches of each other; silent clients do not hold up the others.
"""
