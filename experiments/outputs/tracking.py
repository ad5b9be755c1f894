"""The measurements of a run as TensorBoard's event files.

ALGORITHM/tensorboard/seed_S/      of a run; of a sweep settings come before, such as top_k=3/seed_0
  METRIC                        as in metrics.csv, at its rounds: accuracies (mean over clients,
                                worst tenth, pooled), losses, train_loss, traffic in bytes
"""

import shutil
from pathlib import Path

import fedjax_pfl as pfl
from fedjax_pfl.data.whole_files import writing
from fedjax_pfl.results.tables import setting_names

from .run_files import metric_rows

FOLDER = "tensorboard"


def check() -> None:
    """Raises `InputError` where the package that writes event files is missing."""
    try:
        import tensorboardX  # noqa: F401 - slow, and only an extra
    except ImportError as error:
        raise pfl.InputError(
            "--tensorboard needs the package tensorboardX, which the extra brings: "
            f"pip install 'fedjax_pfl[tensorboard]' ({error})."
        ) from error


def write(folder: Path, result: pfl.Result) -> None:
    """Writes an algorithm's event files into `folder`/tensorboard, unless they are there already.

    Raises:
      InputError: the package is missing.
    """
    check()
    from tensorboardX import SummaryWriter

    whole, part = folder / FOLDER, folder / f".part-{FOLDER}"
    if whole.exists():
        return
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed while writing
    with writing(part):
        _write(part, result, SummaryWriter)
        part.rename(whole)


def _write(part: Path, result: pfl.Result, writer_of: type) -> None:
    for setting, name in enumerate(setting_names(result)):
        place = part / name.replace("/", "_") if result.settings else part
        writers = {seed: writer_of(str(place / f"seed_{seed}")) for seed in result.seeds}
        for seed, number, metric, value in metric_rows(result, setting):
            writers[seed].add_scalar(metric, value, number)
        for writer in writers.values():
            writer.close()
