"""The coordinator's part that lets members in: the first gathering, the initial values, late joiners.

The job begins when all workers have said hello or the patience is over, then with those that are there. The lowest
of them writes the initial values; everyone else takes them from the shards.
"""

from __future__ import annotations

from enum import Enum

from paceline.errors import ConfigError, UsageError
from paceline.hybrid import Hybrid, check_mode, parse_mode, start_of
from paceline.logic.membership import RESTING, Worker
from paceline.logic.partition import first_difference, layout_of, shards_worth
from paceline.messages import Attached, Go, Halt, Hello, Seeded, Serve, Welcome
from paceline.roles.epochs import Epochs
from paceline.roles.job import Job

LAST_CALL = 10
"""How many patiences the job waits for a first hello before it gives up."""
LEAST_LAST_CALL_S = 60.0
"""However short the patience is: imports, data and first touches of memory take long on a loaded machine."""
NOTHING_TO_TRAIN = "the script ended in every worker before it called run.prepare(...), so there was nothing to train"


class Forming(Enum):
    """How far the first gathering is."""

    GATHERING = "waiting for workers"
    SEEDING = "the first worker writes the initial values"
    SERVING = "the servers build their shards"
    ATTACHING = "the workers hand over their memory"
    BEGUN = "begun"


class Enrolment:
    """Who may join and when the job begins."""

    def __init__(self, job: Job, epochs: Epochs) -> None:
        self.job, self.epochs = job, epochs
        self.forming = Forming.GATHERING
        self._servers: set[int] = set()
        self._serving: set[int] = set()
        self._missed: set[int] = set()
        self._settled: set[int] = set()
        self._hosts: dict[int, str] = {}
        self._first = -1
        self._seeded = self._has_state = False

    def hello(self, worker_id: int, hello: Hello) -> None:
        """A worker wants to join."""
        worker = Worker(worker_id, hello.incarnation, hello.model)
        self.job.members.add(worker)
        self.job.accounts.of(worker_id)
        self._hosts[worker_id] = hello.host
        if self.job.gauges is not None:
            self.job.gauges.joined(worker_id)
        if self.job.model is not None and not self._same_model(worker):
            return
        may_choose = self.job.settings.pace_is_open and self.forming is Forming.GATHERING
        if may_choose and hello.pace and not self._take_pace(worker_id, hello.pace):
            return
        self.job.note("join", role="worker", id=worker.id, worker=worker.id, pid=hello.pid, host=hello.host)
        if self.forming is Forming.GATHERING:
            self._missed.discard(worker_id)
            self._form_if_all_there()
        elif self.forming in (Forming.ATTACHING, Forming.BEGUN):
            self._welcome(worker, first=False)

    def missed(self, worker_id: int, reason: str) -> None:
        """A worker is gone that never said hello: the gathering does not wait for it."""
        if self.forming is not Forming.GATHERING:
            self._settle(worker_id)
            return
        self.job.accounts.lost.append(worker_id)
        self._missed.add(worker_id)
        self._form_if_all_there()
        if self._all_missed:
            self.job.end(4, f"worker {worker_id}, the last one, was lost before it joined: {reason}")

    def absent(self, worker_id: int) -> None:
        """A worker's script has ended well without a hello: the gathering does not wait for it."""
        if self.forming is Forming.GATHERING:
            self._missed.add(worker_id)
            self._form_if_all_there()
            if self._all_missed:
                self.job.end(1, NOTHING_TO_TRAIN)

    @property
    def _all_missed(self) -> bool:
        return len(self._missed) >= self.job.settings.num_workers

    def _form_if_all_there(self) -> None:
        workers = self.job.members.workers
        if workers and len(workers) + len(self._missed) >= self.job.settings.num_workers:
            self.form()

    def _take_pace(self, worker_id: int, text: str) -> bool:
        try:
            mode = parse_mode(text)
            for sentence in check_mode(mode, self.job.settings.num_workers):
                self.job.warn(sentence)
        except ConfigError as error:
            self.job.end(2, f"worker {worker_id}: {error}")
            return False
        self.job.pace = start_of(mode)
        self.job.settings = self.job.settings._replace(hybrid=mode if isinstance(mode, Hybrid) else None)
        return True

    def _same_model(self, worker: Worker) -> bool:
        model = self.job.model
        assert model is not None
        difference = first_difference(model, worker.model)
        if difference:
            mine, theirs = self._hosts[worker.id], self._hosts[self._first]
            my_place, their_place = ("", "") if mine == theirs else (f" on {mine}", f" on {theirs}")
            self.job.end(1, f"worker {worker.id}'s model{my_place} is not that of worker {self._first}{their_place}: {difference}")
        return not difference

    def form(self) -> None:
        """Begin with those that are there: the lowest writes the initial values."""
        workers = self.job.members.workers
        self._first = min(workers)
        if self.job.model is None:
            try:
                layout = layout_of(workers[self._first].model)
            except UsageError as error:
                self.job.end(1, str(error))
                return
            self.job.gradient_bytes = layout.trainable_bytes
            if self.job.settings.servers_are_open:
                num_worth = shards_worth(layout, len(self.job.all_servers), self.job.settings.least_shard_bytes)
                self.job.servers = self.job.all_servers[:num_worth]
        self.job.model = workers[self._first].model
        if all(self._same_model(worker) for worker in workers.values()):
            self.forming = Forming.SEEDING
            self._welcome(workers[self._first], first=True)

    def _welcome(self, worker: Worker, *, first: bool) -> None:
        job = self.job
        worker.welcomed = True
        job.tell(worker, Welcome(first, job.settings.num_workers, len(job.servers), job.version, job.pace))
        worker.told_pace = job.num_paces

    def server_hello(self, shard: int, pid: int, host: str) -> None:
        """A server is there."""
        self._servers.add(shard)
        self.job.note("join", role="server", id=shard, worker=None, pid=pid, host=host)
        self._serve()
        self._release()

    def seeded(self, worker: Worker, message: Seeded) -> None:
        """The initial values are written."""
        if self.forming is Forming.SEEDING and worker.id == self._first:
            self._seeded, self._has_state = True, message.has_optimizer_state
            self._serve()

    def _serve(self) -> None:
        job = self.job
        if self.forming is not Forming.SEEDING or not self._seeded or not all(server.id in self._servers for server in job.servers):
            return
        assert job.model is not None
        self.forming = Forming.SERVING
        for server in job.servers:
            job.send(server, Serve(server.id, len(job.servers), job.model, self._has_state, job.pace))

    def serving(self, shard: int) -> None:
        """A shard is built; with the last one everyone may attach (the first worker may have done so already)."""
        self._serving.add(shard)
        if self.forming is Forming.SERVING and len(self._serving) == len(self.job.servers):
            self.forming = Forming.ATTACHING
            for worker in self.job.members.workers.values():
                if not worker.welcomed:
                    self._welcome(worker, first=False)
            self.begin_if_complete()

    def attached(self, worker: Worker, _: Attached) -> None:
        """Every server has this worker's memory."""
        self.job.members.attach(worker)
        self.job.members.move(worker, RESTING)
        if self.forming is Forming.BEGUN:
            self.epochs.leases.recount(worker)
            self.job.tell(worker, Go(self.job.settings.num_workers, self.epochs.joined(worker), self.epochs.first))
        self._settle(worker.id)
        if self.forming is not Forming.BEGUN:
            self.begin_if_complete()

    def begin_if_complete(self) -> None:
        """The job begins when all of the first gathering have attached."""
        workers = self.job.members.workers.values()
        if self.forming is not Forming.ATTACHING or not workers or self.job.members.num_attached < len(workers):
            return
        self.forming = Forming.BEGUN
        self.epochs.first = min(worker.id for worker in workers)
        for worker in workers:
            self.job.members.count(worker)
            self.epochs.leases.recount(worker)
            self.job.tell(worker, Go(self.job.settings.num_workers, self.epochs.index, self.epochs.first))
        self._release()

    def _settle(self, worker_id: int) -> None:
        """A worker is attached, or gone before it could be: it will connect to no further server."""
        if worker_id not in self._settled:
            self._settled.add(worker_id)
            self._release()

    def _release(self) -> None:
        """Let the servers go that hold no shard, once every worker is attached or gone: one that still joins connects to all.

        Whoever comes when the run ends goes as well: it was not there to be asked to finish.
        """
        job = self.job
        have_all = job.settings.workers_come_once and len(self._settled | self._missed) >= job.settings.num_workers
        is_over = job.said_bye and not job.members.workers
        if self.forming is not Forming.BEGUN or not (have_all or is_over):
            return
        for server in job.all_servers[len(job.servers) :]:
            if server.id in self._servers:
                self._servers.remove(server.id)
                job.note("leave", role="server", id=server.id, worker=None, reason="it holds no shard")
                job.send(server, Halt(0, ""))

    def left(self, worker: Worker) -> None:
        """A member is gone before the job began: another one may have to seed."""
        if self.forming is Forming.SEEDING and worker.id == self._first and not self._seeded and self.job.members.workers:
            self.form()
        self.begin_if_complete()
        self._settle(worker.id)

    def expire(self) -> None:
        """The patience with the first gathering may be over: begin with those that are there."""
        job, patience_s = self.job, self.job.settings.patience_s
        waited_s = job.now_s - job.started_s
        if self.forming is Forming.BEGUN or waited_s < patience_s:
            return
        if self.forming is Forming.GATHERING and job.members.workers:
            self.form()
        elif waited_s >= (limit_s := max(LEAST_LAST_CALL_S, LAST_CALL * patience_s)):
            advice = "if the start takes that long, raise --patience"
            if job.members.workers:
                job.end(5, f"the job did not begin within {limit_s:g} s: {self.waits_for()}; {advice}")
            else:
                job.end(5, f"no worker has called run.prepare within {limit_s:g} s; {advice}")

    def waits_for(self) -> str:
        """Whom the gathering waits for, in words."""
        missing = [str(server) for server in self.job.servers if server.id not in self._serving]
        late = [f"worker {worker.id}" for worker in self.job.members.workers.values() if not worker.attached]
        return f"it waits for {', '.join(missing + late)}"
