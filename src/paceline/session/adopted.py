"""Giving a user's object other methods while it stays itself: the same object, a kind of its class, the same state."""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any


def adopt(thing: Any, **methods: Callable[..., Any]) -> None:
    """Let `methods` replace those of the class of `thing`, for this object alone.

    Nothing enters its `__dict__`, so its `state_dict` keeps its keys; a copy or a pickle of it is of the old class.
    """
    kind: Any = type(thing)

    def reduce(self: Any, protocol: Any) -> Any:
        make, arguments, *rest = kind.__reduce_ex__(self, protocol)
        # a pickler checks that what `__newobj__` makes has the class of the object
        make = kind.__new__ if make is copyreg.__newobj__ else make  # type: ignore[attr-defined]
        return (make, tuple(kind if argument is adopted else argument for argument in arguments), *rest)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, "__reduce_ex__": reduce}
    adopted = type(kind.__name__, (kind,), {**names, **methods})
    object.__setattr__(thing, "__class__", adopted)
