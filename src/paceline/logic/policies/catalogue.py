"""From what a run was told to the policy that moves its pace."""

from __future__ import annotations

from paceline.hybrid import Hybrid
from paceline.logic.policies.adasync import AdaSync
from paceline.logic.policies.dssp import Dssp
from paceline.logic.policies.goodput import Goodput
from paceline.logic.policies.policy import Policy
from paceline.logic.policies.schedule import Schedule
from paceline.logic.policies.stragglers import Stragglers
from paceline.logic.policies.syncswitch import SyncSwitch
from paceline.pace import LrRule


def policy_of(hybrid: Hybrid, lr_rule: LrRule | None = None) -> Policy | None:
    """The policy of a run; None for a user's own, whose answers come from outside. `lr_rule` is the run's, None: by optimizer.

    >>> from paceline.hybrid import Hybrid, parse_mode
    >>> isinstance(mode := parse_mode("hybrid"), Hybrid) and type(policy_of(mode)).__name__
    'Goodput'
    """
    match hybrid.policy:
        case "goodput":
            return Goodput(hybrid.sync_share, lr_rule)
        case "syncswitch":
            return SyncSwitch(hybrid.sync_share)
        case "schedule":
            return Schedule(hybrid.stages)
        case "stragglers":
            return Stragglers(hybrid.sync_share)
        case "adasync":
            return AdaSync(hybrid.quorum)
        case "dssp":
            return Dssp(*hybrid.leads)
        case "user":
            return None
