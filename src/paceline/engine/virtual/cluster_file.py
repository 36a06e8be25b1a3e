"""Reading a cluster file, or one of the ready-made clusters, with the files of step times that it names."""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from paceline.config import read_recorded
from paceline.engine.virtual.cluster import EVEN, Cluster, Seconds, check_cluster
from paceline.errors import ConfigError

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_RATES = {"bit/s": 0.125, "kbit/s": 125.0, "Mbit/s": 125e3, "Gbit/s": 125e6, "B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
_NUMBER = r"([0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?|inf)"
_READY_MADE = files("paceline.engine.virtual") / "clusters"


class Loaded(NamedTuple):
    """A cluster, the step times in seconds of each file that it names, and every file's bytes by the name it gets in the run."""

    cluster: Cluster
    times_s: dict[str, tuple[float, ...]]
    copies: dict[str, bytes]


def ready_made() -> list[str]:
    """The names of the clusters that come along."""
    return sorted(entry.name.removesuffix(".toml") for entry in _READY_MADE.iterdir() if entry.name.endswith(".toml"))


def loaded_of(name: str | None) -> Loaded:
    """The cluster `name`, or even workers without one."""
    return Loaded(EVEN, {}, {}) if name is None else read_cluster(name)


def at_recorded_times(loaded: Loaded, file: str) -> Loaded:
    """The same cluster where steps take the times of `file`, as with `--compute recorded:FILE`. Raises ConfigError."""
    groups = tuple(replace(group, profile=file, times=1.0, factor="constant", slow=()) for group in loaded.cluster.workers)
    return loaded._replace(cluster=replace(loaded.cluster, workers=groups), times_s={**loaded.times_s, file: tuple(read_recorded(file))})


def read_cluster(name: str) -> Loaded:
    """The cluster of a file, or a ready-made one by its name. Raises ConfigError, one sentence, for whatever is wrong."""
    if name in ready_made():
        return _loaded((_READY_MADE / f"{name}.toml").read_bytes(), name, Path())
    path = Path(name)
    try:
        data = path.read_bytes()
    except OSError as error:
        allowed = ", ".join(ready_made())
        raise ConfigError(f"the cluster {name} cannot be read: {error.strerror}; ready-made ones are {allowed}") from None
    return _loaded(data, name, path.parent)


def _loaded(data: bytes, name: str, folder: Path) -> Loaded:
    try:
        cluster = msgspec.convert(tomllib.loads(data.decode()), Cluster, dec_hook=_quantity)
        check_cluster(cluster)
    except msgspec.ValidationError as error:
        raise ConfigError(f"cluster {name}: {_sentence(str(error))}") from None
    except ConfigError as error:
        raise ConfigError(f"cluster {name}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"the cluster {name} is not TOML: {error}") from None
    loaded = Loaded(cluster, {}, {"cluster.toml": data})
    for group in cluster.workers:
        for file in (group.recorded, group.profile):
            if file is not None:
                copy = (folder / file).name
                loaded.times_s[file] = _times_s(folder / file)
                loaded.copies[copy] = (folder / file).read_bytes()
    return loaded


def _times_s(path: Path) -> tuple[float, ...]:
    times_s = tuple(read_recorded(str(path)))
    if not sum(times_s):
        raise ConfigError(f"the step times of {path} are all 0, at least one must be above")
    return times_s


def _quantity(kind: type, value: object) -> object:
    units = _SECONDS if kind is Seconds else _RATES
    if isinstance(value, int | float) and not isinstance(value, bool):
        return kind(value)
    found = re.fullmatch(rf"{_NUMBER} ?([A-Za-z/]*)", value.strip()) if isinstance(value, str) else None
    if found is None or (found[2] and found[2] not in units) or (not found[2] and found[1] != "inf"):
        what = "a time" if kind is Seconds else "a bandwidth"
        raise ValueError(f"{value!r} is not {what}, write a number and one of {', '.join(units)}")
    return kind(float(found[1]) * units.get(found[2], 1.0))


def _sentence(text: str) -> str:
    """What msgspec says of a value, in our words."""
    said, _, place = text.partition(" - at ")
    place = place.strip("`").removeprefix("$").removeprefix(".")
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", said)
    if unknown is None:
        return f"{place or 'the file'}: {said[:1].lower()}{said[1:]}"
    allowed = _keys_at(place)
    near = get_close_matches(unknown[1], allowed, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(allowed)}"
    return f"{f'{place}.' if place else ''}{unknown[1]} is not a key, {hint}"


def _keys_at(place: str) -> list[str]:
    """The keys of the table at `workers[0].slow[1]` or the like."""
    kind: Any = Cluster
    for name in re.findall(r"[a-z_]+", place):
        field = next(field for field in msgspec.structs.fields(kind) if field.encode_name == name)
        kind = next((part for part in (field.type, *getattr(field.type, "__args__", ())) if hasattr(part, "__struct_fields__")), field.type)
    return [field.encode_name for field in msgspec.structs.fields(kind)]
