"""The runtime runs, saves, loads and times compiled networks; all but the stopwatch does without TVM's compiler."""
