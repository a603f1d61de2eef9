"""This package imports MXNet's symbols and Gluon's networks."""
