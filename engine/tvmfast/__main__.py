"""Command line: `python -m tvmfast doctor | bench | tune | serve | tracker`."""

from .commands import app

if __name__ == "__main__":
    app()
