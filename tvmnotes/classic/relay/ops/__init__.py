"""Relay's operators by family: what each is called with, and what it has become in Relax."""

from . import arithmetic, image, nn, shapes
from .operator import OPERATORS, Operator, module

__all__ = ["OPERATORS", "Operator", "arithmetic", "image", "module", "nn", "shapes"]
