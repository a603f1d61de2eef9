"""MXNet symbols and Gluon networks in."""
