"""The runtime layer: runs, saves, loads and times compiled networks; only the stopwatch needs TVM's compiler.

compiled    `Compiled`, a network that runs, and `load`
saved       the files of a saved network: writing, checking, reading
stopwatch   the times of all calls in a run
threads     runs in children of a fork
"""
