"""Operators that several frontends share: common.py."""
