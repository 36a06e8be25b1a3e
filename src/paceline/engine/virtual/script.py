"""The user's script: compiled once, run as the main module of each worker."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


class _Once(SourceFileLoader):
    """Compiles its file once and leaves no file of its own."""

    _code: CodeType | None = None

    def get_code(self, fullname: str) -> CodeType | None:  # noqa: ARG002 - as importlib calls it
        """The module's code."""
        if self._code is None:
            self._code = self.source_to_code(self.get_data(self.path), self.path)
        return self._code


class Script:
    """A Python file, with what `python SCRIPT ARGS...` would put into `sys.argv` and in front of `sys.path`."""

    def __init__(self, path: str, arguments: tuple[str, ...]) -> None:
        self.path = path
        self.folder = Path(path).resolve().parent
        self._arguments = arguments
        self._loader = _Once("__main__", path)

    @contextmanager
    def in_place(self) -> Generator[None]:
        """Inside, the process looks as if it had been started with this script; its workers share that."""
        kept = sys.argv, sys.path
        sys.argv, sys.path = [self.path, *self._arguments], [str(self.folder), *sys.path]
        try:
            yield
        finally:
            sys.argv, sys.path = kept

    def module(self) -> ModuleType:
        """A main module that nothing has run in yet."""
        spec = importlib.util.spec_from_file_location("__main__", self.path, loader=self._loader)
        assert spec is not None
        return importlib.util.module_from_spec(spec)

    def run(self, module: ModuleType) -> None:
        """Run the script in `module`."""
        self._loader.exec_module(module)
