"""Checkpoints of a simulation between chunks, written atomically and verified when read."""

import contextlib
import ctypes
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedjax_pfl._version import __version__
from fedjax_pfl.data.atomic_files import writing
from fedjax_pfl.data.files import as_path, reason
from fedjax_pfl.engine.fingerprint import VERSION, digest
from fedjax_pfl.execution import processes
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.conversions import number
from fedjax_pfl.utils.errors import InputError, OutputError, cut, require_whole, warn
from fedjax_pfl.utils.typing import Tree

FORMAT = 1


class Saved(NamedTuple):
    """Content of a checkpoint.

    Attributes:
      round: rounds done.
      trees: by name, the leaves of each as host arrays.
      facts: the JSON that was saved with them.
    """

    round: int
    trees: dict[str, list[np.ndarray]]
    facts: dict[str, Any]


class Checkpoints:
    """Checkpoints of one simulation in a folder.

    Orbax writes each checkpoint under a temporary name and renames it when it is complete. A digest
    of all arrays is stored with it and verified when it is read. If a checkpoint is damaged, a
    warning is given and the previous one is used. Reading never runs code.

    With several processes only the first one writes and reads, and all call each function.

    Args:
      folder: created if it is missing; no other simulation may use it.
      every_seconds: wall time between two checkpoints; 0 saves after every chunk. A simulation that
        ends earlier saves none and leaves no empty folder.
      keep: number of checkpoints to keep, at least 1.
      extendable: whether to also save the state before the last round, from which a simulation of
        more rounds continues.
    """

    @checked
    def __init__(
        self,
        folder: str | Path,
        every_seconds: float = 60.0,
        keep: int = 2,
        extendable: bool = False,
    ):
        every_seconds = number("every_seconds", every_seconds, "at least 0")
        self.folder: Path = as_path("The checkpoint folder", folder).absolute()
        self.every_seconds = every_seconds
        self.keep = require_whole("keep", keep, 1)
        self.extendable = extendable
        self._manager = None
        self._last = time.monotonic()

    def due(self) -> bool:
        """Return whether the next checkpoint is due; processes may differ."""
        return time.monotonic() - self._last >= self.every_seconds

    def save(self, done: int, trees: Mapping[str, Tree], facts: Mapping[str, Any]) -> None:
        """Save pytrees of arrays and some JSON as the state after `done` rounds.

        An existing checkpoint of that round stays unchanged, unless it is damaged.

        Raises:
          OutputError: it can't be written; earlier ones are kept.
        """
        self._fetch_and_save(done, trees, facts)
        _trim()
        self._last = time.monotonic()

    def _fetch_and_save(
        self, done: int, trees: Mapping[str, Tree], facts: Mapping[str, Any]
    ) -> None:
        leaves = {name: processes.gather_to_host(tree) for name, tree in trees.items()}
        processes.on_first(lambda: self._save(done, leaves, facts))

    def _save(
        self, done: int, leaves: Mapping[str, list[np.ndarray]], facts: Mapping[str, Any]
    ) -> None:
        ocp, manager = self._open()
        for step in [one for one in manager.all_steps() if one >= done]:
            if self._read(step) is None:
                manager.delete(step)  # beside a later one nothing would be saved
        if done in manager.all_steps():
            return
        arrays = _by_name(leaves)
        header = {
            "format": FORMAT,
            "round": done,
            "counts": {name: len(stack) for name, stack in leaves.items()},
            "empty": {n: [list(a.shape), str(a.dtype)] for n, a in arrays.items() if not a.size},
            "facts": dict(facts),
        }
        header["digest"] = digest(arrays, header)
        filled = {name: array for name, array in arrays.items() if array.size}
        with self._writing(done):
            manager.save(
                done,
                args=ocp.args.Composite(
                    arrays=ocp.args.StandardSave(filled), facts=ocp.args.JsonSave(header)
                ),
            )

    def latest(self) -> Saved | None:
        """Return the newest undamaged checkpoint, or None."""
        if not processes.is_distributed():
            return self._latest()
        arrays: dict[str, np.ndarray] = {}

        def read() -> list | None:
            saved = self._latest()
            if saved is None:
                return None
            arrays.update(_by_name(saved.trees))
            return [saved.round, {n: len(stack) for n, stack in saved.trees.items()}, saved.facts]

        shared = processes.on_first(read)
        if shared is None:
            return None
        (done, counts, facts), found = shared, processes.from_first(arrays)
        return Saved(done, _by_tree(found, counts), facts)

    def _latest(self) -> Saved | None:
        if not self.folder.is_dir():
            return None
        steps = sorted(self._open()[1].all_steps(), reverse=True)
        for step in steps:
            saved = self._read(step)
            if saved is not None:
                return saved
            warn(f"The checkpoint of round {step} in {self.folder} is damaged and is skipped.")
        return None

    def clear(self) -> None:
        """Delete all checkpoints."""
        processes.on_first(self._clear)

    def _clear(self) -> None:
        manager = self._open()[1]
        for step in manager.all_steps():
            manager.delete(step)

    def remove_if_empty(self) -> None:
        """Delete the folder if nothing is in it."""

        def remove() -> None:
            with contextlib.suppress(OSError):
                self.folder.rmdir()

        processes.on_first(remove)

    def close(self) -> None:
        if self._manager is not None:
            self._manager.close()
            self._manager = None

    def check(self) -> None:
        """Create the folder and check that it is writable.

        Raises:
          OutputError: the folder is not writable.
        """
        processes.on_first(self._check)

    def _check(self) -> None:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()

    @contextlib.contextmanager
    def _writing(self, step: int) -> Iterator[None]:
        """Turn errors that Orbax raises, or logs in its threads, into an `OutputError`."""
        path, logger = self.folder / str(step), logging.getLogger("absl")
        level = logger.level
        logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        except Exception as error:  # a full disk makes its writers raise anything
            for part in self.folder.glob(f"{step}.*tmp*"):
                shutil.rmtree(part, ignore_errors=True)
            code = re.search(r"os_error_code='(\d+)'", str(error))
            why = os.strerror(int(code[1])) if code else cut(reason(error, writing=True), 300)
            raise OutputError(f"The checkpoint {path} can't be written: {why}.") from error
        finally:
            logger.setLevel(level)

    def _open(self):
        # Importing Orbax takes seconds; only runs with checkpoints pay for it.
        import orbax.checkpoint as ocp

        if self._manager is None:
            logging.getLogger("absl").setLevel(logging.ERROR)
            self._check()
            extra: dict[str, Any] = {}
            if processes.is_distributed():  # Orbax need not wait for the others: they save nothing
                of_one = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})
                extra = {"multiprocessing_options": of_one}
            options = ocp.CheckpointManagerOptions(
                max_to_keep=self.keep, create=False, enable_async_checkpointing=False, **extra
            )
            self._manager = ocp.CheckpointManager(
                self.folder, options=options, item_names=("arrays", "facts")
            )
        return ocp, self._manager

    def _read(self, step: int) -> Saved | None:
        """Return the checkpoint of a round, or None if it is damaged.

        Raises:
          InputError: it has another version's format.
        """
        ocp, manager = self._open()
        try:
            found: Any = manager.restore(
                step,
                args=ocp.args.Composite(
                    arrays=ocp.args.StandardRestore(), facts=ocp.args.JsonRestore()
                ),
            )
            header = dict(found.facts)
            arrays = {name: np.asarray(array) for name, array in found.arrays.items()}
            for name, (shape, dtype) in header["empty"].items():
                arrays[name] = np.zeros(shape, dtype)
            saved = header.pop("digest")
            if saved != digest(arrays, header):
                return None
            if header["format"] != FORMAT:
                raise self._of_another_version(header["facts"])
            trees = _by_tree(arrays, header["counts"])
            return Saved(header["round"], trees, header["facts"])
        except InputError:
            raise
        except Exception:  # a damaged file makes its readers raise anything
            return None

    def _of_another_version(self, facts: Mapping[str, Any]) -> InputError:
        version = facts.get("simulation", {}).get(VERSION, "another version")
        return InputError(
            f"The checkpoints in {self.folder} were written by fedjax_pfl {version}, and "
            f"{__version__} can't read them: give another folder to start again."
        )


def _trim() -> None:
    """Return memory that Orbax's threads have freed to the system."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # only the GNU C library has it
        ctypes.CDLL(None).malloc_trim(0)


def _by_name(trees: Mapping[str, Sequence[np.ndarray]]) -> dict[str, np.ndarray]:
    return {f"{n}.{k}": array for n, stack in trees.items() for k, array in enumerate(stack)}


def _by_tree(
    arrays: Mapping[str, np.ndarray], counts: Mapping[str, int]
) -> dict[str, list[np.ndarray]]:
    """Invert `_by_name`."""
    return {name: [arrays[f"{name}.{k}"] for k in range(count)] for name, count in counts.items()}
