"""The cells of a grid: runs of one algorithm each, in folders of their own."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import absl.flags

import fedjax_pfl as pfl

from .. import run
from ..cli import build, data_flags, flags, run_folder, shell
from ..cli.config import ExperimentConfig


@dataclass(frozen=True)
class Cell:
    """A run of a grid.

    Attributes:
      row, column: their names.
      words: the command line, with the flags of its row and column.
      folder: of its run.
      define: flags of the grid's command, see `flags.parse`.
    """

    row: str
    column: str
    words: tuple[str, ...]
    folder: Path
    define: Callable[[absl.flags.FlagValues], None] | None = None

    @cached_property
    def config(self) -> ExperimentConfig:
        return flags.parse(["run", *self.words], self.define)

    @property
    def algorithm(self) -> str:
        return self.config.algorithms[0]

    @property
    def result(self) -> Path:
        """The folder of its algorithm."""
        return self.folder / self.algorithm

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Context in which the sentence of an `InputError` names the cell."""
        try:
            yield
        except pfl.InputError as error:
            raise pfl.InputError(f"{self.row}, {self.column}: {error}") from None

    def inputs(self) -> build.Inputs:
        """Return its configuration and data.

        Raises:
          InputError: invalid flags, or no data set.
        """
        return build.load_inputs(self.config, shared=True)

    def has_data(self) -> bool:
        """Return whether the data set exists."""
        try:
            data_flags.load_dataset(self.config, shared=True)
        except pfl.InputError:
            return False
        return True

    def finished(self) -> bool:
        """Return whether the folder has all results.

        If the data set is gone, its content can't be compared.

        Raises:
          InputError: the folder is something else, a run on other data for one.
        """
        if not self.folder.exists():
            return False
        if self.has_data() and run_folder.check(self.folder, self.inputs().identity):
            return False  # the run there had fewer rounds or seeds
        return run_folder.finished(self.folder, [self.algorithm])

    def experiment(self) -> build.Experiment | None:
        """Return the checked run, or None if it is finished.

        Raises:
          InputError: it can't be run; the sentence names the cell.
        """
        with self.named():
            inputs = self.inputs()
            folder = build.Folder(**run_folder.inspect(inputs.config, inputs.identity))
            return None if folder.finished else build.prepare(inputs, folder)


def run_all(cells: Sequence[Cell], after: Callable[[], None] = lambda: None) -> None:
    """Run the cells one after the other, those that are not finished; call `after` after each.

    Raises:
      shell.Interrupted: one of them was.
    """
    for number, cell in enumerate(cells, start=1):
        print(f"\n[{number}/{len(cells)}] {cell.row}, {cell.column}", flush=True)
        experiment = cell.experiment()
        code = 0 if experiment is None else run.run(experiment, quiet=True)
        if code:
            raise shell.Interrupted(code)
        after()
