"""Relay is served here: expressions, operators, text, passes, and what builds them.

ir, ty             expressions and modules; types
ops, text, lower   what installs itself into the expressions when any of Relay is imported
lift, frontend     from Relax, and from the importers
transform          passes; `rewrites` are those that Relax has not
build              `relay.build` and what it gives
functor, scope_builder, testing, networks
"""

from . import lower, ops, text

__all__ = ["lower", "ops", "text"]
