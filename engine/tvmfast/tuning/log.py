"""The records file that a tuning continues from and appends to, possibly together with other processes."""

import os
from collections.abc import Iterable
from pathlib import Path

from ..compiler.records import Record, locked, open_records, read_from


class Log:
    """A file of records at `path`, created if it does not exist. Raises OSError if it cannot be written."""

    def __init__(self, path: str | os.PathLike):
        self.path, self._read = Path(path), 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_records(self.path, "a+b", "write")

    def read_new(self) -> list[Record]:
        """Return the records that any process added since the last call.

        Raises and warns as `records.read` does.
        """
        records, self._read = read_from(self._file, self._read)
        return records

    def append(self, records: Iterable[Record]) -> None:
        """Append records, all or none, and flush them to disk before returning.

        Raises OSError if they cannot be written, on a full disk for example; the file's content stays as it
        was.
        """
        text = "".join(f"{record}\n" for record in records).encode()
        with locked(self._file):
            size = self._file.seek(0, os.SEEK_END)
            # A process that was killed may have left an incomplete line.
            if size and os.pread(self._file.fileno(), 1, size - 1) != b"\n":
                text = b"\n" + text
            try:
                written = 0
                while written < len(text):
                    written += self._file.write(text[written:])
                os.fsync(self._file.fileno())
            except OSError as error:
                os.ftruncate(self._file.fileno(), size)
                message = f"cannot write the records ({error.strerror}); those of before are all there"
                raise type(error)(error.errno, message, str(self.path)) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()
