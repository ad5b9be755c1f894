"""Rows of one saved partition, in Parquet or Arrow files, as pool indices."""

from pathlib import Path

import numpy as np

from fedjax_pfl.data.images import decode_images
from fedjax_pfl.data.partition_matching import Matcher, pixels
from fedjax_pfl.data.sources import Dataset
from fedjax_pfl.errors import InputError, require

_LABELS = ("label", "labels", "fine_label", "character")


def read_rows(part: Path, dataset: Dataset, matcher: Matcher, index_column: str) -> np.ndarray:
    """Pool indices of a partition, ascending.

    Args:
      part: a Parquet file, or a folder with Parquet or Arrow files.
      dataset: the data set that was split.
      matcher: of that data set; finds images where there is no column of indices.
      index_column: name of that column.

    Raises:
      InputError: no such files, damaged ones, indices outside the pool, or unknown images.
    """
    table = _read_table(part)
    if index_column in table.column_names:
        column = table[index_column].to_numpy()
        top = len(dataset.labels) - 1
        known = column.dtype.kind in "iu" and (
            len(column) == 0 or (column.min() >= 0 and column.max() <= top)
        )
        require(known, f"Column {index_column!r} in {part}", str(column.dtype), f"0..{top}")
        return np.sort(column.astype(np.int64))
    images = [
        name
        for name in table.column_names
        if str(table.schema.field(name).type).startswith("struct<")
        and "bytes" in [field.name for field in table.schema.field(name).type]
    ]
    if len(images) != 1:
        raise InputError(
            f"{part} has neither a column {index_column!r} of indices nor one of encoded images; "
            f"columns found: {', '.join(table.column_names)}."
        )
    labels = next((table[name].to_numpy() for name in _LABELS if name in table.column_names), None)
    rows = table[images[0]].to_pylist()
    if not rows:
        return np.zeros(0, np.int64)
    what = f"images of {part}"
    named = (
        (f"Image {i} of {part}", (row or {}).get("bytes") or b"") for i, row in enumerate(rows)
    )
    decoded = decode_images(named, len(rows), channels=dataset.input_shape[-1])
    return matcher.match(pixels(decoded, dataset, what, 0.5, 0.5), labels, what)


def _read_table(part: Path):
    import pyarrow as pa  # slow import: only where it is used
    import pyarrow.parquet as pq

    files = [part] if part.is_file() else sorted(part.glob("*.parquet"))
    arrow = [] if files else sorted(part.glob("*.arrow"))
    if not files and not arrow:
        raise InputError(f"{part} holds no .parquet and no .arrow file.")
    try:
        if files:
            return pa.concat_tables([pq.read_table(file) for file in files])
        return pa.concat_tables(
            [pa.ipc.open_stream(file.read_bytes()).read_all() for file in arrow]
        )
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{part} can't be read as Parquet or Arrow: {error}") from error
