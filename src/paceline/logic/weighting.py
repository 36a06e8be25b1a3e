"""What a gradient weighs, and what the learning rate is multiplied by."""

from __future__ import annotations

from math import sqrt

from paceline.pace import LrRule, Pace, Weighting


def omega(weighting: Weighting, staleness: int) -> float:
    """The factor on a gradient of `staleness` updates.

    >>> omega(Weighting("inverse"), 4), omega(Weighting("polynomial", 0.5), 3)
    (0.25, 0.5)
    """
    match weighting.rule:
        case "none":
            return 1.0
        case "inverse":
            return 1.0 / max(1, staleness)
        case "polynomial":
            return (1.0 + staleness) ** -weighting.exponent


def lr_rule_of(pace: Pace, asked: LrRule | None, *, scales_gradients: bool) -> LrRule:
    """The learning rate rule in force: the pace's own, else the one asked for, else by the optimizer's kind."""
    if pace.weighting.rule != "none":
        return "none"
    return pace.lr_rule or asked or ("linear" if scales_gradients else "sqrt")


def lr_factor(pace: Pace, rule: LrRule, *, num_live: int, num_at_start: int) -> float:
    """Quorum in force over workers at the start, by `rule`; 1 when all workers make every update.

    >>> from paceline.pace import parse_pace
    >>> lr_factor(parse_pace("ksync:3"), "linear", num_live=4, num_at_start=4)
    0.75
    """
    if rule == "none" or pace.quorum.rule == "all":
        return 1.0
    quorum = pace.quorum.of(num_live)
    share = (min(quorum, num_live) if pace.distinct else quorum) / num_at_start
    return share if rule == "linear" else sqrt(share)
