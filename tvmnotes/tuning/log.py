"""The file of records that a tuning goes on with and appends to, perhaps together with other processes."""

import os
from collections.abc import Iterable
from pathlib import Path

from ..compiler.records import Record, locked, open_records, read_from


class Log:
    """A file of records, which is made where it is not there yet. Raises OSError where it cannot be written."""

    def __init__(self, path: str | os.PathLike):
        self.path, self._read = Path(path), 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_records(self.path, "a+b", "write")

    def read_new(self) -> list[Record]:
        """The records that came since the last call, whoever wrote them. Raises and warns as `records.read` does."""
        records, self._read = read_from(self._file, self._read)
        return records

    def append(self, records: Iterable[Record]) -> None:
        """Write the records, all or none, and have them on the disk before this returns.

        Raises OSError where they cannot be written, on a full disk for example; what was there before stays as it was.
        """
        text = "".join(f"{record}\n" for record in records).encode()
        with locked(self._file):
            size = self._file.seek(0, os.SEEK_END)
            if size and os.pread(self._file.fileno(), 1, size - 1) != b"\n":  # a line that a kill has torn
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
        self._file.close()
