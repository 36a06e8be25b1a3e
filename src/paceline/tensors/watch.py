"""Notices when the script writes parameters that only the servers may write."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from torch import Tensor

from paceline.errors import UsageError

version_of = attrgetter("_version")


class Watch:
    """What we left in each parameter: its version counter and its address.

    A write through `.data` moves no counter: it is noticed only when it re-points the parameter.
    """

    def __init__(self, parameters: Sequence[Tensor], names: Sequence[str]) -> None:
        self._parameters = parameters
        self._names = names
        self.settle()

    def settle(self) -> None:
        """What is there now is ours."""
        self._versions = [version_of(parameter) for parameter in self._parameters]
        self._addresses = [parameter.data_ptr() for parameter in self._parameters]

    def check(self) -> None:
        """Raise UsageError that names the first parameter that somebody else wrote."""
        versions = [version_of(parameter) for parameter in self._parameters]
        addresses = [parameter.data_ptr() for parameter in self._parameters]
        if versions == self._versions and addresses == self._addresses:
            return
        found = zip(self._names, versions, self._versions, addresses, self._addresses, strict=True)
        name = next(name for name, version, left, address, place in found if version != left or address != place)
        raise UsageError(
            f"parameter {name} was changed by the script after prepare; the servers hold its values, so change it before prepare "
            "or through model.load_state_dict"
        )
