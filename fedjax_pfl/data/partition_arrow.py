"""Rows of one saved partition, in Parquet or Arrow files, as pool indices."""

import io
from pathlib import Path

import numpy as np

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
    decoded = [_decode(row["bytes"], part) for row in table[images[0]].to_pylist()]
    if not decoded:
        return np.zeros(0, np.int64)
    shapes = {image.shape for image in decoded}
    require(len(shapes) == 1, f"Shapes of the images in {part}", sorted(shapes)[:3], "one shape")
    what = f"images of {part}"
    return matcher.match(pixels(np.stack(decoded), dataset, what, 0.5, 0.5), labels, what)


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


def _decode(data: bytes | None, part: Path) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        return np.asarray(Image.open(io.BytesIO(data or b"")))
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise InputError(f"{part} holds an image that can't be decoded: {error}") from error
