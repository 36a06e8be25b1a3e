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


def weight_of(pace: Pace, staleness: int, *, num_live: int) -> float:
    """What `pace` makes of a gradient: omega of its staleness, which counts as at least that of `num_live` equal workers.

    As many gradients are on their way whether this one overtook the others or not. Where all begin at once, at the start
    of an epoch or after `sync`, the first ones are not stale, yet each is a part of one step from the same parameters.

    >>> from paceline.pace import parse_pace
    >>> [weight_of(parse_pace("softsync:8"), tau, num_live=8) * 56 for tau in (0, 7, 8)]
    [8.0, 8.0, 7.0]
    """
    if pace.weighting.rule == "none":
        return 1.0
    return omega(pace.weighting, max(staleness, pace.steady_staleness(max(1, num_live))))


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
