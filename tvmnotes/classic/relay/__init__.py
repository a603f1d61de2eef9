"""Relay: expressions, operators, text, passes, and what builds them.

Importing any of it installs operators, text and inference into the expressions.
"""

from . import lower, ops, text

__all__ = ["lower", "ops", "text"]
