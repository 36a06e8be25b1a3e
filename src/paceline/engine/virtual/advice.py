"""A user's own policy on the virtual engine: asked in the same process of its own, waited for while virtual time stands still."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

from paceline.engine.local.advisor import Advisor, Answer
from paceline.hybrid import Hybrid
from paceline.messages import COORDINATOR
from paceline.roles.effects import Consult
from paceline.transport.shm import SocketPort

LOOK_S = 0.2


class Advice:
    """Asks the policy of `hybrid`; what is wrong with it is in `remarks`, sentences for the user that wait to be taken."""

    def __init__(self, hybrid: Hybrid, run_dir: Path, num_workers: int) -> None:
        self._port = SocketPort(COORDINATOR)
        self._advisor = Advisor(self._port, hybrid, run_dir, num_workers)

    @property
    def remarks(self) -> list[str]:
        """Sentences for the user."""
        return self._advisor.remarks

    def ask(self, consult: Consult) -> Answer:
        """The answer, which a policy that takes too long in real time does not give."""
        self._advisor.ask(consult, monotonic())
        while True:
            delivery = self._port.receive(LOOK_S)
            now_s = monotonic()
            answer = None if delivery is None else self._advisor.heard(delivery.sender, delivery.message, now_s)
            answer = answer or self._advisor.expire(now_s)
            if answer is not None and answer.number == consult.number:
                return answer

    def close(self) -> None:
        """Leave no process behind."""
        self._advisor.close()
        self._port.close()
