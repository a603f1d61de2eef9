"""Relay: expressions, operators, text, passes, and what builds them."""
