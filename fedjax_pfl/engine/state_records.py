"""Records of bytes by index, in memory or in a file."""

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from fedjax_pfl.utils.errors import OutputError, gigabytes


class MemoryRecords:
    """Records in separate arrays, allocated when a client first takes part."""

    def __init__(self):
        self.records: dict[int, np.ndarray] = {}

    def read(self, index: int, size: int) -> np.ndarray:
        return self.records[index]

    def write(self, index: int, record: np.ndarray) -> None:
        self.records[index] = record


class FileRecords:
    """Records in an unnamed file, which the system deletes when the process ends.

    It is read and written, not mapped: a full disk is then an error like any other.
    """

    def __init__(self, folder: Path, needed: int):
        self.folder = folder
        try:
            free = shutil.disk_usage(folder).free
            self.file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        except OSError as error:
            raise self._error(error) from error
        if free < needed:
            self.file.close()
            raise OutputError(
                f"The state of the clients may take {gigabytes(needed)} in a file in {folder}, "
                f"where {gigabytes(free)} are free."
            )

    def _error(self, error: OSError) -> OutputError:
        why = error.strerror or type(error).__name__
        return OutputError(f"The state of the clients can't be written to {self.folder}: {why}.")

    def read(self, index: int, size: int) -> np.ndarray:
        record, done = np.empty(size, np.uint8), 0
        while done < size:
            count = os.preadv(self.file.fileno(), [record.data[done:]], index * size + done)
            if count == 0:
                raise OutputError(f"The file in {self.folder} with clients' state is cut short.")
            done += count
        return record

    def write(self, index: int, record: np.ndarray) -> None:
        done, size = 0, len(record)
        try:
            while done < size:
                part = record.data[done:]
                done += os.pwrite(self.file.fileno(), part, index * size + done)
        except OSError as error:
            raise self._error(error) from error
