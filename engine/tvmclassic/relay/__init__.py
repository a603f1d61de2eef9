"""Relay: expressions, operators, text format, passes and builds.

ir             expressions, their operators and attributes; modules
ty             types
ops            operators; importing Relay installs them, `text` and `lower` into the expressions
text           the text format
lower          from Relay to Relax, and type inference
lift           from Relax to Relay
frontend       `relay.frontend`: the frontends
transform      `relay.transform`: passes
rewrites       the passes that Relax lacks
build          `relay.build` and its library
vm             `relay.vm`, its executables, `relay.create_executor`
programs       programs as data, for files
machine        the virtual machine: branches, recursion, dims of any length
quantize       `relay.quantize`: networks of float32 as such of int8
sparsity       `relay.data_dep_optimization`: sparse weights
functor        `relay.expr_functor`: visitors; `relay.ScopeBuilder`
networks       the networks of `relay.testing`
testing        `relay.testing`
"""

from . import lower, ops, text

__all__ = ["lower", "ops", "text"]
