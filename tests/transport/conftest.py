"""Every test of the transports is audited."""

from __future__ import annotations

from audited import nothing_forbidden

__all__ = ["nothing_forbidden"]
