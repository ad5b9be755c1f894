"""Rows of one saved partition, in Parquet or Arrow files, as pool indices."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedjax_pfl.data.arrow_files import batches, open_parquet, stream_batches
from fedjax_pfl.data.dataset import Dataset
from fedjax_pfl.data.image_decoding import decode_images
from fedjax_pfl.data.partitions.matching import Matcher, pixels
from fedjax_pfl.utils.errors import InputError, require

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
    files = sorted(part.glob("*.parquet")) if part.is_dir() else [part]
    arrow = [] if files else sorted(part.glob("*.arrow"))
    if not files and not arrow:
        raise InputError(f"{part} holds no .parquet and no .arrow file.")
    pieces, labels, rows, top = [], [], 0, len(dataset.labels) - 1
    for batch in itertools.chain(*map(_parquet, files), *map(stream_batches, arrow)):
        rows += len(batch)
        if rows > top + 1:
            raise InputError(f"{part} has more rows than the {top + 1} samples of the data set.")
        names = batch.schema.names
        if names.count(index_column) == 1:
            column = _numbers(part, batch, index_column)
            shown = f"{column.min()}..{column.max()}" if len(column) else None
            known = len(column) == 0 or (column.min() >= 0 and column.max() <= top)
            require(known, f"Column {index_column!r} in {part}", shown, f"in 0..{top}")
            pieces.append(column.astype(np.int64))
            continue
        images = [name for name in names if names.count(name) == 1 and _encoded(batch, name)]
        if len(images) != 1:
            raise InputError(
                f"{part} has neither a column {index_column!r} of indices nor one of encoded "
                f"images; columns found: {', '.join(names[:20])}."
            )
        label = next((name for name in _LABELS if names.count(name) == 1), None)
        labels.append(None if label is None else _numbers(part, batch, label))
        channels = dataset.input_shape[-1]
        values = batch.column(images[0]).to_pylist()
        named = (
            (f"Image {i} of {part}", (value or {}).get("bytes") or b"")
            for i, value in enumerate(values, rows - len(batch))
        )
        what = f"images of {part}"
        decoded = decode_images(named, len(batch), channels=channels)
        pieces.append(pixels(decoded, dataset, what, 0.5, 0.5))
    if not pieces:
        return np.zeros(0, np.int64)
    if not labels:
        return np.sort(np.concatenate(pieces))
    if len(labels) < len(pieces) or len({one is None for one in labels}) > 1:
        raise InputError(f"Files of {part} must have the same columns.")
    y = None if labels[0] is None else np.concatenate(labels)
    return matcher.match(np.concatenate(pieces), y, f"images of {part}")


def _parquet(path: Path) -> Iterator:
    return batches(path, open_parquet(path))


def _encoded(batch, name: str) -> bool:
    """Whether a column holds structs with the bytes of images."""
    import pyarrow.types as types  # slow import: only where it is used

    kind = batch.schema.field(name).type
    if not types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        return False
    stored = kind.field("bytes").type
    return types.is_binary(stored) or types.is_large_binary(stored)


def _numbers(part: Path, batch, name: str) -> np.ndarray:
    """A column of integers without gaps [rows]."""
    import pyarrow.types as types

    column = batch.column(name)
    what = f"Column {name!r} in {part}"
    require(types.is_integer(column.type), what, str(column.type), "integers")
    require(column.null_count == 0, what, f"{column.null_count} gaps", "without gaps")
    return column.to_numpy(zero_copy_only=False)
