"""The messages between a data processing server and its clients.

Each message is a struct: the type and the limits of every field are checked when it is decoded
(codec.py). No message causes an import or a call.

A session, from the client's side:

    client                                  server
    OpenSession ──────────────────────────> SessionOpened, or Refused
    StartIteration ───────────────────────> IterationStarted
             <── BatchHeader, BatchPart ...  batches that the client leases
    Acknowledge ──────────────────────────> Confirm
    Ping ─────────────────────────────────> Pong
             <── PassEnded                   all batches of the pass are consumed
    EndIteration (to stop early)
    CloseSession ─────────────────────────> SessionClosed

The head of server/batch_leases.py has the rules and the terms.
"""

from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from gpupipe.protocol.batch_bytes import PART_LIMIT, Count, Slot, TensorField, Text

VERSION = 7
MAX_UNACKED = 3
"""Maximum number of batches that a client hands to its consumer before the server confirms the
first of them.
"""

Long = Annotated[str, Meta(max_length=4000)]
Token = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Key = tuple[Count, Count]
"""Identifies a batch: (number of its pass, its step in that pass)."""
Keys = Annotated[list[Key], Meta(max_length=1000)]


class _Message(Struct, forbid_unknown_fields=True, frozen=True):
    pass


# --- from a client


class OpenSession(_Message, tag="open session", frozen=True):
    """Opens a session, or continues it after the connection or the server was replaced.

    Attributes:
        token: Identifies the client over reconnects; random.
        number: Number of this OpenSession, counted by the client. The server ignores the message if
            it has already received a later one on another connection.
        name: HOST:PID, for messages to users.
        world_size: Number of ranks. A client with world_size 1 gets any free partition.
        hwm: Number of batches that the client wants to hold at once.
        host_id: Names the machine, process namespace and user; see peers.host_id.
        process_started: Start time of the process `pid`; see peers.start_time.
        codecs: Codecs that the client can unpack.
        held: Batches that the client holds and has not consumed, in order of arrival.
        consumed: Batches that the client consumed and the server has not confirmed yet.
        history: The `history` in the last SessionOpened that the client got; "" before the first.
    """

    version: Count
    token: Token
    number: Count
    name: Text
    rank: Count
    world_size: Count
    hwm: Annotated[int, Meta(ge=1, le=1000)]
    host_id: Text
    pid: Count
    process_started: Text
    wants_shared_memory: bool
    codecs: Annotated[list[Text], Meta(max_length=8)]
    held: Keys
    consumed: Keys
    history: Text = ""


class StartIteration(_Message, tag="start iteration", frozen=True):
    """Starts an iteration at a position of an epoch, or continues an iteration in a pass.

    Attributes:
        iteration: Number of the iteration, counted by the client.
        epoch: Epoch to read.
        position: Number of samples to skip at the start of the epoch.
        pass_number: Number of the pass to continue, or -1 to continue none.
        is_explicit: Whether the user named the position. If so, the server must not choose another.
    """

    iteration: Count
    epoch: Count
    position: Count
    pass_number: Annotated[int, Meta(ge=-1, lt=2**62)]
    is_explicit: bool = False


class Acknowledge(_Message, tag="acknowledge", frozen=True):
    """Tells the server which batches the client consumed, and which slots it may reuse.

    Attributes:
        keys: The consumed batches, in the order in which they were consumed.
        slots: Numbers of the slots that the server may reuse.
    """

    keys: Keys
    slots: Annotated[list[Count], Meta(max_length=1000)]


class EndIteration(_Message, tag="end iteration", frozen=True):
    """Ends the iteration early: the server requeues all batches that the client has not consumed.

    A client also sends this message to acknowledge a Failed message with `is_final`.
    """


class Ping(_Message, tag="ping", frozen=True):
    """Tells the server that the client is alive. The server answers with Pong."""


class CloseSession(_Message, tag="close session", frozen=True):
    """Ends the client's session: the server requeues all its leases, except those in `consumed`.

    The client repeats this message, on any connection, until the server answers SessionClosed.
    """

    token: Token
    consumed: Keys


class GetStats(_Message, tag="get stats", frozen=True):
    """Requests a server's metrics, without need of a session. The server answers with Stats."""


# --- from the server


class PassInProgress(NamedTuple):
    """Tells a client that joins a pass in the middle how much of the pass is left.

    Attributes:
        left: Number of steps that are neither leased nor done.
        steps: Number of all steps of the pass.
        readers: Names of at most four other clients of the partition. A name may end with the
            seconds for which that client was silent.
    """

    left: Count
    steps: Count
    readers: Annotated[list[Text], Meta(max_length=8)]


class SessionOpened(_Message, tag="session opened", frozen=True):
    """Answers OpenSession: the client has a session.

    Attributes:
        history: Token of the server's sequence of passes. A server that resumes keeps it.
        pid: Process id of the server.
        leased: Batches that the client still leases, in order. The client drops all other batches.
        epoch: Epoch where the client begins if its user names no position.
        position: Number of samples to skip at the start of that epoch.
        rank: Rank of the client's partition over all servers.
        world_size: Number of ranks over all servers.
        description: Describes what is served; see engines/remote/description.py.
        joined: Progress of the current pass if the client joins it in the middle, else None.
    """

    version: Count
    history: Token
    pid: Count
    leased: Keys
    epoch: Count
    position: Count
    rank: Count
    world_size: Count
    description: dict[str, Any]
    joined: PassInProgress | None = None


class IterationStarted(_Message, tag="iteration started", frozen=True):
    """Tells a client that its iteration entered a pass, or that another client entered that pass.

    `is_shared` says whether other clients read the pass too.
    """

    iteration: Count
    pass_number: Count
    is_shared: bool = False


class BatchHeader(_Message, tag="batch header", frozen=True):
    """Announces a batch. Its bytes are in a slot, or follow as BatchParts.

    Attributes:
        end: Number of samples of the epoch that all ranks together have read after this batch.
        is_last: Whether the batch is the last of the pass for this client.
        fields: The tensors of the batch.
        size: Size of the batch in bytes, with padding.
        slot: The slot that holds the bytes, or None if they follow as BatchParts.
    """

    key: Key
    epoch: Count
    end: Count
    is_last: bool
    fields: Annotated[list[TensorField], Meta(max_length=64)]
    size: Count
    slot: Slot | None


class BatchPart(_Message, tag="batch part", frozen=True):
    """A piece of the batch that the last BatchHeader announced. The next frame holds its bytes.

    Attributes:
        key: Identifies the batch.
        offset: Byte offset of the piece in the batch.
        size: Size of the decompressed piece in bytes.
        codec: Compression of the piece: "lz4", "zstd", or "" for none.
    """

    key: Key
    offset: Count
    size: Annotated[int, Meta(ge=1, le=PART_LIMIT)]
    codec: Annotated[str, Meta(max_length=8)]


class Confirm(_Message, tag="confirm", frozen=True):
    """Tells a client that the server has logged the batches `keys` as consumed."""

    keys: Keys


class Revoke(_Message, tag="revoke", frozen=True):
    """Tells a client which of its batches the server requeued because the client was silent.

    The client must not consume the batches `keys`.
    """

    keys: Keys


class PassEnded(_Message, tag="pass ended", frozen=True):
    """Tells a client that all batches of a pass are consumed."""

    pass_number: Count


class Refused(_Message, tag="refused", frozen=True):
    """Refuses a client's request. If `is_temporary` is true, the same request may succeed later."""

    reason: Long
    is_temporary: bool


class Failed(_Message, tag="failed", frozen=True):
    """Tells a client that an error ended its iteration.

    Attributes:
        kind: Name of the exception's class.
        text: Message of the exception.
        path: The exception's `path` if it is a SampleError, else "".
        reason: The exception's `reason` if it is a SampleError, else "".
        is_final: Whether the error also ends the server.
    """

    kind: Text
    text: Long
    path: Long
    reason: Long
    is_final: bool = False


class Pong(_Message, tag="pong", frozen=True):
    """Answers Ping: the server is alive."""


class SessionClosed(_Message, tag="session closed", frozen=True):
    """Answers CloseSession: the session has ended."""


class UnknownSession(_Message, tag="unknown session", frozen=True):
    """Tells a client that its connection has no session: the client must send OpenSession."""


class Stats(_Message, tag="stats", frozen=True):
    """Answers GetStats: the metrics that `gpupipe status` shows."""

    stats: dict[str, Any]


ToServer = (
    OpenSession | StartIteration | Acknowledge | EndIteration | Ping | CloseSession | GetStats
)
_Answer = SessionOpened | Confirm | Refused | Pong | SessionClosed | UnknownSession | Stats
ToClient = _Answer | IterationStarted | BatchHeader | BatchPart | Revoke | PassEnded | Failed
