"""Every message of a job, as frozen values; decoded strictly, never by pickle.

Bulk data is not here: it lies in arenas that a transport hands over (see `ports.py`). The groups follow the
direction of travel. Sizes: a lease names positions of the epoch's batch list, never samples.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from paceline.pace import Pace


class Address(NamedTuple):
    """Who a message is from or for: `role` is coordinator, worker, server, supervisor, advisor or broker."""

    role: str
    id: int = 0

    def __str__(self) -> str:
        return self.role if self.role in ("coordinator", "supervisor", "broker") else f"{self.role} {self.id}"


COORDINATOR = Address("coordinator")
SUPERVISOR = Address("supervisor")


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages; the tag is the class name."""


# --- the model, as everyone must see it ------------------------------------------------------------------


class TensorSpec(msgspec.Struct, frozen=True, array_like=True):
    """One parameter or buffer: its name in `state_dict`, shape, dtype (`float32`, ...) and optimizer group.

    `group` is -1 for what no optimizer touches. `aliases` are further names of a tied tensor. `saved` is false
    for buffers that `state_dict` leaves out.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    group: int = -1
    aliases: tuple[str, ...] = ()
    saved: bool = True


class ModelSpec(msgspec.Struct, frozen=True, array_like=True):
    """What is trained: parameters in the optimizer's order, then those without one; buffers; the optimizer.

    `optimizer` is the class as `module:qualname`. `elementwise`: it treats every element alone.
    `groups` is the msgpack of a list with one map of settings per param group (lr, momentum, fused, ...).
    `arguments` is the msgpack of the optimizer's constructor defaults. `scales_gradients` is true for optimizers
    that feel the length of a gradient (SGD): they take weights as they are and the linear learning rate rule.
    """

    parameters: tuple[TensorSpec, ...]
    buffers: tuple[TensorSpec, ...]
    optimizer: str
    groups: bytes
    arguments: bytes
    elementwise: bool
    scales_gradients: bool


# --- worker -> coordinator -------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """A worker wants to be a member; `pace` is what its script asks for, empty when it leaves that to the run."""

    worker: int
    incarnation: int
    pid: int
    host: str
    model: ModelSpec
    pace: str = ""


class Seeded(Message, frozen=True):
    """The first worker has written the initial parameters and buffers into the parameter arena.

    An optimizer state that is not empty travels as an attachment (see `tensors`).
    """

    has_optimizer_state: bool


class Attached(Message, frozen=True):
    """Every server has taken this worker's arena: it can take part from now on."""


class Enter(Message, frozen=True):
    """A worker's loader begins epoch `epoch`; `ledger` false: its batches are counted by nobody.

    `planned` is the number of epochs that the script means to run in all, 0 when it did not say.
    """

    epoch: int
    ledger: bool = True
    planned: int = 0


class Drawn(Message, frozen=True):
    """The batch list of an epoch, drawn by the worker that was asked: samples per entry, and owners.

    `owners` is empty with leases `exact`; with `static` it names the worker of each entry. `updates` is the
    number of sync updates of the epoch. `cut` > 0 (`--batch global`): there is one list of samples, of which each
    stretch of `cut` is split among the live workers; 0 when entries are whole batches. `repeated` of the samples
    are in the list twice (padding of a fixed split). The indices are an attachment.
    """

    epoch: int
    sizes: tuple[int, ...]
    owners: tuple[int, ...]
    updates: int
    cut: int = 0
    repeated: int = 0


class LeaseRequest(Message, frozen=True):
    """More batches, please; with `wait` the answer may come late, or be the end of the epoch."""

    epoch: int
    wait: bool


class Begin(Message, frozen=True):
    """The worker wants to compute on its next batch: the first of a round, or a further one of the same step."""

    epoch: int


class GiveBack(Message, frozen=True):
    """The loop was left early: everything this worker holds goes back. `consumed` batches are given up as skipped."""

    epoch: int
    consumed: bool = False


class Ready(Message, frozen=True):
    """Every server can read the whole gradient of `step` in buffer `buffer`.

    `versions` is the version read from each shard. `positions` are the leased entries in it, `samples` their
    number of samples. `norm` is the 2-norm (nan or inf: not finite). `absent` is a bitmap of the parameters
    without a gradient, empty when there are none. `hyper` is the msgpack of the groups' settings, empty when
    they are as in this worker's last Ready. `clip` is the norm that the fold is clipped to, 0 for none.
    `buffer_samples` > 0: the model's buffers lie beside the gradient and weigh so many samples.
    `compute_s`, `wait_s` and `pulled_bytes` are counted since the last Ready; `exchange_s` is the part of `wait_s` after
    the coordinator let the worker go on: the update's apply and the copy of the parameters.
    `in_group`: the gradient stays with its worker, whose group will sum it.
    """

    step: int
    incarnation: int
    buffer: int
    versions: tuple[int, ...]
    positions: tuple[int, ...]
    samples: int
    norm: float
    absent: bytes = b""
    hyper: bytes = b""
    clip: float = 0.0
    buffer_samples: int = 0
    compute_s: float = 0.0
    wait_s: float = 0.0
    pulled_bytes: int = 0
    exchange_s: float = 0.0
    in_group: bool = False


class AtEnd(Message, frozen=True):
    """The worker holds the version of the end of `epoch`."""

    epoch: int


class Meet(Message, frozen=True):
    """All live workers meet under `key` (each key once); `values` are summed with `weight`."""

    key: str
    values: tuple[float, ...] = ()
    weight: float = 1.0


class Log(Message, frozen=True):
    """What the script logged; `weight` is the number of samples behind it."""

    metrics: dict[str, float]
    epoch: int
    weight: int


class SnapshotRequest(Message, frozen=True):
    """The state of all shards at one version, sent to this worker; `optimizer` adds its state."""

    optimizer: bool


class Load(Message, frozen=True):
    """Write-through of a loaded state: the attachment replaces the parameters and, if there, optimizer state."""

    has_parameters: bool
    has_optimizer_state: bool


class StopRun(Message, frozen=True):
    """The script asks for an early end of the run for all."""

    why: str


class Bye(Message, frozen=True):
    """The worker's script has ended well."""


class Convened(Message, frozen=True):
    """Group `generation` can meet there."""

    generation: int
    host: str
    port: int


class Formed(Message, frozen=True):
    """This worker is one of group `generation` and holds all shards at `version`.

    Where the run's route is open: `collective_s` is what summing a gradient in the group takes, `servers_s` what the
    exchange with the servers takes, for the whole model: the one reckoned from a piece of it, the other from a pull.
    """

    generation: int
    version: int
    collective_s: float = 0.0
    servers_s: float = 0.0


class Broken(Message, frozen=True):
    """Group `generation` could not meet, or could not sum; nothing of that update is applied here."""

    generation: int
    why: str


class Handed(Message, frozen=True):
    """All shards as this worker holds them: the attachment, in the format of `tensors.state`."""

    version: int


class Leaving(Message, frozen=True):
    """The script has ended and its worker is in a group: answered by Free once it is not needed any more."""


# --- coordinator -> worker -------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """You are a member. The parameter arena is an attachment. `first`: write the initial values into it.

    `version` is the newest update. The first `num_servers` servers hold a shard each.
    """

    first: bool
    num_workers: int
    num_servers: int
    version: int
    pace: Pace


class Go(Message, frozen=True):
    """All that must be there is there: training may begin, with `epoch`; `first` as in EpochOver."""

    num_workers: int
    epoch: int = 0
    first: int = 0


class Draw(Message, frozen=True):
    """You are the first in this epoch: draw its batch list and answer Drawn."""

    epoch: int
    num_workers: int


class Plan(Message, frozen=True):
    """The epoch's batch list is drawn (indices attached); `updates` is the length that the loader reports."""

    epoch: int
    updates: int


class Grant(Message, frozen=True):
    """Entries leased to you, in order; empty: none can be had now.

    `cuts` are the sample ranges (start, stop) of each, empty when entries are whole batches. `recalled` entries
    were taken back unstarted, before the new ones were leased.
    """

    epoch: int
    positions: tuple[int, ...]
    cuts: tuple[tuple[int, int], ...] = ()
    recalled: tuple[int, ...] = ()


class Start(Message, frozen=True):
    """The answer to a step, and the leave to go on.

    `step` is the step that may start. Read versions `at_least` before. `work` false: nothing is held, so the
    worker is at rest until its loader begins again. `in_place`: the shards' memory may be read as it is.
    `leased`/`cuts` are new entries as in Grant, `recalled` entries that were taken back unstarted. `refused`
    tells why the last step's gradient was refused, empty when it was not. `clock` is the run's sample clock in
    sync updates. `pace` is there when it changed. `stop`: the script is to end its loops.
    """

    step: int
    at_least: int
    work: bool
    in_place: bool
    leased: tuple[int, ...] = ()
    cuts: tuple[tuple[int, int], ...] = ()
    recalled: tuple[int, ...] = ()
    refused: str = ""
    clock: int = 0
    pace: Pace | None = None
    stop: bool = False


class EpochOver(Message, frozen=True):
    """Every sample of the epoch is folded (or accounted for); the end is at `version`. `stop`: the run ends here.

    Worker `first`, the lowest one that is live, does until the next such message what only one worker should do.
    """

    epoch: int
    version: int
    stop: bool
    first: int = 0


class Met(Message, frozen=True):
    """All were there: the weighted sums and the sum of weights; `version` is the newest update."""

    key: str
    values: tuple[float, ...]
    weight: float
    version: int


class Halt(Message, frozen=True):
    """The run is over before its time; the worker ends with `code`."""

    code: int
    sentence: str


class Convene(Message, frozen=True):
    """Open the place where group `generation` is to meet."""

    generation: int


class Form(Message, frozen=True):
    """Be one of group `generation`: its `workers` hold all shards each, and the order comes to them in place of the servers.

    They meet at `host` and `port`. `fresh`: the servers have the shards, at `version`. `measure`: tell what the routes take.
    """

    generation: int
    workers: tuple[int, ...]
    version: int
    fresh: bool
    host: str = ""
    port: int = 0
    measure: bool = False


class Disband(Message, frozen=True):
    """The servers hold the shards from here on; with `gives`, hand them over first (Handed)."""

    gives: bool


class Free(Message, frozen=True):
    """The answer to Leaving."""


# --- coordinator -> server -------------------------------------------------------------------------------


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A gradient by its name, where it lies, and its weight in the fold.

    `gathered`: the accumulator holds it already (an Accept came before). `buffer_samples` > 0: the model's
    buffers beside it replace the ones known from this worker. `staleness` is that at its fold; a gathered one's is final.
    """

    worker: int
    incarnation: int
    step: int
    buffer: int
    weight: float
    gathered: bool = False
    buffer_samples: int = 0
    staleness: int = 0


class Serve(Message, frozen=True):
    """Hold shard `shard` of `num_shards` of this model. The parameter arena is an attachment, so is the optimizer state.

    `pace` is the one that the run begins with.
    """

    shard: int
    num_shards: int
    model: ModelSpec
    has_optimizer_state: bool
    pace: Pace | None = None


class Accept(Message, frozen=True):
    """Add this gradient to the accumulator now; its Fold follows."""

    member: Member


class Fold(Message, frozen=True):
    """Make update `version`: the weighted sum of the members, times `scale`, through the optimizer.

    The learning rates are multiplied by `lr_factor`. `hyper` is empty when unchanged since the last Fold.
    `absent` is the bitmap of parameters without a gradient in any member. With `clip` > 0, and under a `bound`
    correction, the shard reports its part of the squared norms and waits for a Factor. `measure`: it answers Measured.
    `votes`: the members are of a group that holds all shards each; the report says that the sum is there, Factor that it is
    on all of them.
    """

    version: int
    members: tuple[Member, ...]
    scale: float
    lr_factor: float
    hyper: bytes = b""
    absent: bytes = b""
    clip: float = 0.0
    measure: bool = False
    votes: bool = False


class Factor(Message, frozen=True):
    """What the fold's gradient is multiplied by before it is applied, and the learning rates too."""

    version: int
    factor: float
    lr_factor: float = 1.0


class SetPace(Message, frozen=True):
    """Behind update `version` the run is under `pace`: its correction, and what it says of the momentum, hold from here on.

    A `ramp` brings the momentum back over `ramp_updates` updates.
    """

    version: int
    pace: Pace
    ramp_updates: int = 0


class Keep(Message, frozen=True):
    """Keep the shard's state as it is at this place of the order, in memory, in place of the one kept before."""

    version: int


class Restore(Message, frozen=True):
    """Update `version` is the state that was kept, not a fold."""

    version: int


class Snapshot(Message, frozen=True):
    """Send the shard as it is at this place of the order to a worker, if it is still the one that asked."""

    worker: int
    incarnation: int
    request: int
    optimizer: bool


class Restate(Message, frozen=True):
    """Update `version` is a loaded state (attached), not a fold; `handed`: it is what the workers' group made of it."""

    version: int
    has_parameters: bool
    has_optimizer_state: bool
    handed: bool = False


class Gone(Message, frozen=True):
    """This worker is no member any more; its arena is let go after the entries that came before."""

    worker: int
    incarnation: int


class Finish(Message, frozen=True):
    """The run is over: tell the last version and end."""


# --- server -> coordinator -------------------------------------------------------------------------------


class ServerHello(Message, frozen=True):
    """A server is there and waits for its shard."""

    server: int
    pid: int
    host: str


class Serving(Message, frozen=True):
    """The shard is built from its initial values."""


class PartNorm(Message, frozen=True):
    """The squared 2-norm of this shard's part of the fold, and of what the parameters moved since its members read them.

    `moved` is there under a `bound` correction, the mean over the members by weight.
    """

    version: int
    square: float
    moved: float = 0.0


class Measured(Message, frozen=True):
    """Squared 2-norms of this shard's parts of an update: the fold's gradient, the parameters before, their change.

    `busy_s` is how long the shard worked since the update before, pulls included; the engine fills it in.
    """

    version: int
    gradient: float
    parameters: float
    change: float
    busy_s: float = 0.0


class NotFinite(Message, frozen=True):
    """The shard turned non-finite at `version`."""

    version: int
    parameter: str


class Finished(Message, frozen=True):
    """The last version that this shard holds, after Finish."""

    version: int


# --- worker <-> server -----------------------------------------------------------------------------------


class Attach(Message, frozen=True):
    """A worker's arena is the attachment; answered by Linked."""

    worker: int
    incarnation: int


class Pull(Message, frozen=True):
    """Once at `at_least`: tell the version, and with `copy` write the shard's parameters into the worker's arena.

    The answer also waits until the worker's gradient of step `taken` has been read (-1: of none), so that its
    buffer may be written again. `buffers` asks the shard that holds them for the averaged buffers too.
    """

    at_least: int
    copy: bool
    taken: int = -1
    buffers: bool = False


class Params(Message, frozen=True):
    """The shard is at `version`, and was copied if that was asked."""

    version: int


class Linked(Message, frozen=True):
    """The server has the worker's arena mapped."""


class State(Message, frozen=True):
    """A snapshot's shard at `version`; the attachment holds the tensors of `tensors.state`'s format."""

    request: int
    version: int


# --- worker, server -> coordinator, supervisor; coordinator -> supervisor -------------------------------


class Failed(Message, frozen=True):
    """A process cannot go on: what ended it, for the one who tells the user. `text` may be a traceback."""

    code: int
    sentence: str
    text: str = ""


# --- coordinator -> supervisor ---------------------------------------------------------------------------


class Progress(Message, frozen=True):
    """The run at a glance, some times a second. `epoch_samples` is 0 when unknown.

    `waiting_for` are the workers that others wait for; `begun`: the first gathering is over. `shares` are the workers'
    parts of a cut batch, empty while all are even.
    """

    pace: str
    version: int
    samples: int
    epoch: int
    epoch_folded: int
    epoch_samples: int
    loss: float | None
    staleness: float
    num_workers: int
    waiting_for: tuple[int, ...]
    begun: bool
    shares: tuple[tuple[int, float], ...] = ()


class Remark(Message, frozen=True):
    """A sentence for the user that ends nothing."""

    sentence: str


# --- coordinator, server -> the process that started them --------------------------------------------------


class Listening(Message, frozen=True):
    """This process can be reached there."""

    host: str
    port: int


class Placed(Message, frozen=True):
    """Ray has found room for the run, which begins with so many workers; `host` is this machine as others reach it."""

    host: str
    num_workers: int


class Said(Message, frozen=True):
    """What processes of the run have printed, as lines for the console."""

    lines: tuple[str, ...]


# --- coordinator <-> the user's own policy ---------------------------------------------------------------


class Loaded(Message, frozen=True):
    """The policy's file is loaded and the function is there; `error` says why not."""

    error: str = ""


class Ask(Message, frozen=True):
    """What is the next pace? `signals` is the msgpack of Signals, `history` that of a list of Move."""

    number: int
    signals: bytes
    history: bytes


class Advice(Message, frozen=True):
    """The answer to an Ask: a pace's name, empty to stay, and why. `error` says what is wrong with it, `fault` of which kind."""

    number: int
    pace: str = ""
    why: str = ""
    fault: str = ""
    error: str = ""


WorkerToCoordinator = (
    Hello | Seeded | Attached | Enter | Drawn | LeaseRequest | Begin | GiveBack | Ready | AtEnd | Meet | Log
    | SnapshotRequest | Load | StopRun | Bye | Failed | Convened | Formed | Broken | Handed | Leaving
)  # fmt: skip
ServerToCoordinator = ServerHello | Serving | PartNorm | Measured | NotFinite | Finished | Failed
CoordinatorToWorker = Welcome | Go | Draw | Plan | Grant | Start | EpochOver | Met | Convene | Form | Disband | Free | Halt
CoordinatorToServer = Serve | Accept | Fold | Factor | SetPace | Keep | Restore | Snapshot | Restate | Gone | Finish | Halt
WorkerToServer = Attach | Pull
ServerToWorker = Params | Linked | State | Halt
ToSupervisor = Progress | Remark | Failed | Listening | Placed | Said
AboutPolicy = Loaded | Ask | Advice

AnyMessage = (
    WorkerToCoordinator | ServerToCoordinator | CoordinatorToWorker | CoordinatorToServer | WorkerToServer | ServerToWorker | ToSupervisor
    | AboutPolicy
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(AnyMessage)  # pyright: ignore[reportAssignmentType]


def encode(message: Message) -> bytes:
    """The bytes of one message."""
    return _encoder.encode(message)


def decode(data: bytes | bytearray | memoryview) -> Message:
    """The message in `data`; raises msgspec.ValidationError (a ValueError) when it is none of ours."""
    return _decoder.decode(data)
