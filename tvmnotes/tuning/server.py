"""`python -m tvmnotes serve`: an RPC server of TVM's that registers with a tracker and measures what it is sent."""

import os

_ANYWHERE = ("127.0.0.1", "localhost", "::1")


def serve(tracker: str, key: str, host: str, port: int, threads: int | None, cores: list[int], say) -> None:
    """Serve until interrupted; `say` gets a sentence for the user now and then. See the command's help."""
    if cores:
        os.sched_setaffinity(0, cores)
    if threads or cores:
        os.environ["TVM_NUM_THREADS"] = str(threads or len(cores))  # before TVM starts its threads
    from tvm import rpc

    from .trial import register_sweep

    register_sweep()
    if host not in _ANYWHERE:
        say(f"Warning: whoever reaches {host} can run any program here. Serve on a network that you trust only.")
    where, _, tracker_port = tracker.rpartition(":")
    server = rpc.Server(host, port, port + 100, key=key, tracker_addr=(where, int(tracker_port)), silent=True)
    say(f"Serving on {host}:{server.port} as {key!r}, with {os.environ['TVM_NUM_THREADS']} threads, for the tracker "
        f"at {tracker}. Ctrl-C ends it.")  # fmt: skip
    try:
        server.proc.join()
    except KeyboardInterrupt:
        say("Ended.")
    finally:
        server.terminate()
