"""What a plan comes to, in plain sentences: what to choose and why, by the precision wanted, the size of the data and the resources."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

from paceline.plan.candidates import Candidate, Plan
from paceline.plan.progress import Point, best, crossing
from paceline.plan.target import Target

FEW_UPDATES = 50
"""Of an epoch: fewer, and a lockstep of these workers is a very large batch for these data."""
MUCH_WAIT = 0.15
UNEVEN = 1.3
MUCH_LESS, NO_MATTER = 0.9, 0.05
FAR_OFF = 3.0
NUM_LEVELS = 8


def advice(plan: Plan) -> list[str]:
    """The sentences, the choice first."""
    told = [choice(plan), reason(plan), precision(plan), data(plan), resources(plan), caution(plan)]
    return [sentence for sentence in told if sentence]


def span(seconds: float) -> str:
    """A length of time in words.

    >>> span(0.0421), span(8.27), span(754), span(9000)
    ('42 ms', '8.3 s', '12.6 min', '2.5 h')
    """
    if seconds < 1.0:
        return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{1000 * seconds:.3g} ms"
    for unit_s, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.3g} s"


def amount(num_bytes: float) -> str:
    """A number of bytes in words.

    >>> amount(351784), amount(12.0)
    ('352 kB', '12 B')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 999.5:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.3g} TB"


def choice(plan: Plan) -> str:
    """What to choose, and what cannot be told from it."""
    first = plan.candidates[0]
    if plan.target is None:
        return (
            f"{first.pace} is through the samples first, after {span(first.forecast.run_s)}; the script logs no metric, so what its "
            f"gradients are worth is not known: log the loss, and the plan says which pace learns first."
        )
    if first.arrival is None:
        return f"No pace came to {plan.target} within the script's {plan.profile.num_epochs} epochs{_nearest(plan, plan.target)}."
    named = f"{plan.target}" if plan.is_own else f"{plan.target}, where the pilot of {_reference(plan)} ended (name your own with --target)"
    how = "reaches" if first.arrival.is_seen else "is predicted to reach"
    told = f"Choose {first.pace}: it {how} {named} after {span(first.arrival.time_s)}{_against(plan)}."
    if not first.arrival.is_planned:
        told += f" That is beyond the script's {plan.profile.num_epochs} epochs."
    ties = [one.pace for one in plan.candidates[1:] if one.rank == 1]
    if ties:
        told += f" {_listed(ties)} cannot be told from it: the intervals of their times overlap."
    return told


def _nearest(plan: Plan, target: Target) -> str:
    """The best value that was seen, and whose."""
    values = {one.pace: best(one.points[1:], rising=target.rising) for one in plan.candidates if len(one.points) > 1}
    if not values:
        return ""
    pick = (max if target.rising else min)(values, key=values.__getitem__)
    return f"; {pick} came nearest, with {values[pick]:.4g}: train longer, or ask for less"


def _reference(plan: Plan) -> str:
    return "sync" if any(one.pace == "sync" for one in plan.candidates) else "the first pace"


def _against(plan: Plan) -> str:
    """The others' times, behind a comma."""
    first, *others = plan.candidates
    sync = next((one for one in others if one.pace == "sync"), others[-1] if others else None)
    if first.arrival is None or sync is None or sync.arrival is None:
        return ""
    times = sync.arrival.time_s / first.arrival.time_s
    ratio = f"{times:.2g} times" if abs(times - 1.0) > NO_MATTER else "about"
    return f", {sync.pace} after {span(sync.arrival.time_s)} ({ratio} as long)"


def reason(plan: Plan) -> str:
    """Why: what sync waits for, and what the others pay for not waiting."""
    first = plan.candidates[0]
    sync = next((one for one in plan.candidates if one.pace == "sync"), None)
    if sync is None or len(plan.candidates) < 2:
        return ""
    cost = sync.forecast
    if cost.wait_share < MUCH_WAIT:
        told = f"In sync workers wait only {_percent(cost.wait_share)} of their time, so there is little to win by not waiting."
    else:
        told = f"In sync workers wait {_percent(cost.wait_share)} of their time, {_cause(sync)}."
    if first is not sync:
        mine = first.forecast
        told += f" {first.pace} waits {_percent(mine.wait_share)} and folds {mine.samples_per_s:,.0f} samples a second, "
        told += f"sync {cost.samples_per_s:,.0f}{_price(first, sync)}."
    return told


def _cause(sync: Candidate) -> str:
    """Whether sync waits for a slow worker or for the network."""
    cost = sync.forecast
    if cost.straggling > UNEVEN:
        return f"since the slowest worker takes {cost.straggling:.2g} times as long as the median one"
    if cost.num_lost:
        return f"for steps that vary and for what {cost.num_lost} failures left undone"
    return f"mostly for the {amount(cost.step_bytes)} that a step moves, beside steps of {span(cost.compute_s)}"


def _price(first: Candidate, sync: Candidate) -> str:
    """What the first pays for that speed."""
    prices: list[str] = []
    if first.arrival is not None and sync.arrival is not None and sync.arrival.samples > 0:
        prices.append(f"it needs {first.arrival.samples / sync.arrival.samples:.2g} times the samples of sync for the target")
    staleness = first.forecast.staleness
    if staleness["mean"] > 0:
        prices.append(f"its gradients are {staleness['mean']:.2g} updates old ({staleness['p99']:g} for the oldest hundredth)")
    if first.forecast.refused_share > 0.005:
        prices.append(f"{_percent(first.forecast.refused_share)} of its gradients come late and are done again")
    return f"; {', '.join(prices)}" if prices else ""


def precision(plan: Plan) -> str:
    """Who is first at which precision, as far as the flights went."""
    if plan.target is None:
        return ""
    lines = {one.pace: one.points for one in plan.candidates if len(one.points) > 1}
    spells = [(level, _first_at(lines, level, plan.target)) for level in _levels(plan, plan.target)]
    runs = [(pace, [level for level, _ in group]) for pace, group in groupby(spells, key=lambda spell: spell[1]) if pace is not None]
    if not runs:
        return ""
    metric = plan.target.metric
    word = "up to" if plan.target.rising else "down to"
    parts = [f"{word} {levels[-1]:.3g} {pace} is first" for pace, levels in runs]
    return f"Precision: for {metric} {', '.join(parts)}{_exactest(lines, plan.target)}."


def _levels(plan: Plan, target: Target) -> list[float]:
    """Values between where training begins and the target."""
    start = plan.profile.first.get(target.metric)
    if start is None or start == target.value:
        return [target.value]
    return [start + (target.value - start) * number / NUM_LEVELS for number in range(1, NUM_LEVELS + 1)]


def _first_at(lines: dict[str, tuple[Point, ...]], value: float, target: Target) -> str | None:
    wanted = Target(target.metric, value, target.rising)
    times = {pace: crossed.t_s for pace, line in lines.items() if (crossed := crossing(line, wanted)) is not None}
    return min(times, key=times.__getitem__, default=None)


def _exactest(lines: dict[str, tuple[Point, ...]], target: Target) -> str:
    """Whose samples were worth most: the best value after as many samples as every flight has."""
    common = min((line[-1].samples for line in lines.values()), default=0.0)
    values = {pace: found for pace, line in lines.items() if (found := _value_at(line, common)) is not None}
    if len(values) < 2:
        return ""
    pick = (max if target.rising else min)(values, key=values.__getitem__)
    worst = (min if target.rising else max)(values, key=values.__getitem__)
    return f"; after the same {common:,.0f} samples {pick} has the best, {values[pick]:.4g}, {worst} the worst, {values[worst]:.4g}"


def _value_at(line: Sequence[Point], samples: float) -> float | None:
    for before, after in pairwise(line):
        if before.samples <= samples <= after.samples and after.samples > before.samples:
            return before.value + (after.value - before.value) * (samples - before.samples) / (after.samples - before.samples)
    return None


def data(plan: Plan) -> str:
    """What the size of the data has to do with it."""
    first, profile = plan.candidates[0], plan.profile
    told = f"Data: {profile.num_epochs} epochs of {profile.epoch_samples:,} samples, batches of {profile.batch}"
    if first.arrival is not None:
        epochs = first.arrival.samples / profile.epoch_samples
        told += f"; {first.pace} needs {first.arrival.samples:,.0f} samples, {epochs:.2g} epochs"
    sync = next((one for one in plan.candidates if one.pace == "sync"), None)
    if sync is not None and sync.forecast.updates_per_epoch < FEW_UPDATES and plan.num_workers > 1:
        told += (
            f"; sync makes only {sync.forecast.updates_per_epoch:.3g} updates an epoch, of {_update_samples(plan, sync):.0f} samples each"
        )
        if first.arrival is not None and sync.arrival is not None and first.arrival.samples < MUCH_LESS * sync.arrival.samples:
            told += ", and more of smaller ones learn more from so little data, which fades as the data grow"
    return f"{told}."


def _update_samples(plan: Plan, sync: Candidate) -> float:
    return plan.profile.epoch_samples / sync.forecast.updates_per_epoch


def resources(plan: Plan) -> str:
    """Memory, network and failures."""
    cost = plan.candidates[0].forecast
    rate = cost.step_bytes / cost.step_s if cost.step_s else 0.0
    told = (
        f"Resources: {plan.candidates[0].pace} needs about {amount(cost.memory_worker_bytes)} on each of {plan.num_workers} workers "
        f"and {amount(cost.memory_server_bytes)} on each server, and moves {amount(cost.step_bytes)} a worker and step, "
        f"{amount(rate)}/s for each worker"
    )
    lost = max(one.forecast.num_lost for one in plan.candidates)
    if lost:
        told += f"; up to {lost} failures of workers fall into a run, and every pace came through"
    return f"{told}."


def caution(plan: Plan) -> str:
    """What the numbers rest on."""
    effort = plan.effort
    return (
        f"Times are virtual, from pilots of {_percent(plan.share)} of the run and runs to the target with {_seeds(plan)}: "
        f"{effort.flown_samples:,} samples in {span(effort.flown_s)} here, where all candidates to the end are "
        f"{effort.full_samples:,} in about {span(effort.full_s)}. {_here(plan)}"
    ).strip()


def _seeds(plan: Plan) -> str:
    first, last = plan.seeds[0], plan.seeds[-1]
    alone = "one seed, and another one may change places of paces that are close (--seeds 3 tries three)"
    return alone if first == last else f"the seeds {first} {'and' if last == first + 1 else 'to'} {last}"


def _here(plan: Plan) -> str:
    """Whether the cluster computes as this machine does; a wrong guess there makes all times wrong."""
    cost, sample_s = plan.candidates[0].forecast, plan.profile.sample_s
    cluster_s = cost.compute_s / max(1, plan.profile.batch)
    far = max(sample_s / cluster_s, cluster_s / sample_s) if cluster_s > 0.0 and sample_s > 0.0 else 1.0
    told = f"A sample takes {span(sample_s)} on this machine and {span(cluster_s)} on the cluster's workers"
    return f"{told}; if that is not meant, correct `compute` in the cluster file." if far > FAR_OFF else f"{told}."


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
