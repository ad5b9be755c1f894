"""Partitions of a data set among clients, with checks, hashes and files."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fedjax_pfl.data.atomic_files import writing
from fedjax_pfl.data.files import as_path
from fedjax_pfl.data.npz import read_npz, save_arrays
from fedjax_pfl.data.partitions import partition_checks, statistics
from fedjax_pfl.data.partitions.held_out import held_out
from fedjax_pfl.data.partitions.ragged import Lists, Ragged
from fedjax_pfl.data.partitions.statistics import SPLITS
from fedjax_pfl.utils.boundary import checked
from fedjax_pfl.utils.conversions import as_array, is_list
from fedjax_pfl.utils.errors import InputError, require, require_name, require_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedjax_pfl.data.dataset import Dataset

_FILE_KEYS = {"train": "train", "test": "test", "validation": "val"}
_NAMES = "client_names"
TABLES = {"label_map": 2, "turns": 1, "corruption": 2}  # tables of the clients, and their axes


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of every client, as indices into a data set's pool.

    The pool is the training samples followed by the official test samples (`Dataset.pool`).

    Attributes:
      train: training samples of the N clients.
      test: test samples of the N clients.
      validation: validation samples of the N clients; None means N empty lists.
      label_map: [N, C] or None; client i sees label `label_map[i, y]` instead of y.
      turns: [N] or None; client i sees images after so many quarter turns counterclockwise, 0..3.
      corruption: [N, 2] or None; the corruption of each client's images, (0, 0) for none or its
        number among `fedjax_pfl.data.CORRUPTIONS`, from 1, and its strength, 1..5.
      rule: name of the rule that made it; "file" if it was loaded.
      options: the rule's resolved options, and facts that it reports.
      allow_overlap: whether several lists may contain a sample.
      names: names of the N clients, such as "hospital_3", or empty.
    """

    train: Ragged
    test: Ragged
    validation: Ragged | None = None
    label_map: np.ndarray | None = None
    turns: np.ndarray | None = None
    corruption: np.ndarray | None = None
    rule: str = "custom"
    options: dict[str, Any] = field(default_factory=dict)
    allow_overlap: bool = False
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in SPLITS:
            lists = getattr(self, name)
            if not isinstance(lists, Ragged | None):
                object.__setattr__(self, name, Ragged.of(lists))
        kind = type(self.options).__name__
        require(isinstance(self.options, Mapping), "options", kind, "a dict")
        require(isinstance(self.rule, str), "rule", self.rule, "text")
        for name in TABLES:
            if (table := getattr(self, name)) is not None:
                table = as_array(table)
                called, allowed = name.replace("_", " ").capitalize(), "an array of whole numbers"
                require(table.dtype.kind in "iu", called, str(table.dtype), allowed)
                object.__setattr__(self, name, table)
        if self.validation is None:
            empty = Ragged(np.zeros(0, np.int32), np.zeros_like(self.train.offsets))
            object.__setattr__(self, "validation", empty)
        listed = is_list(self.names) and all(isinstance(name, str) for name in self.names)
        object.__setattr__(self, "names", tuple(self.names) if listed else self.names)
        fits = listed and len(set(self.names)) == len(self.names) in (0, self.num_clients)
        require(fits, "names", self.names, f"{self.num_clients} different names of clients, or ()")

    def __repr__(self) -> str:
        counts = {split: len(self.split(split).idx) for split in SPLITS}
        sizes = ", ".join(f"{counts[split]} {split}" for split in SPLITS if counts[split])
        return f"Partition({self.rule}: {self.num_clients} clients, {sizes or 'no samples'})"

    @classmethod
    @checked
    def from_lists(
        cls, train: Lists, test: Lists, validation: Lists | None = None, **fields: Any
    ) -> "Partition":
        """Make a partition of one list of pool indices per client and split.

        Args:
          train: N sequences of integers.
          test: N sequences of integers, which may be empty.
          validation: N sequences of integers, or None.
          **fields: other fields of the partition.

        Raises:
          InputError: anything but flat lists of whole numbers in 0..2**31 - 1.
        """
        validation = None if validation is None else Ragged.of(validation)
        return cls(Ragged.of(train), Ragged.of(test), validation, **fields)

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return len(self.train.offsets) - 1

    @checked
    def split(self, split: str) -> Ragged:
        """Return the lists of "train", "test" or "validation"."""
        require_name("split", split, SPLITS)
        return getattr(self, split)

    def sizes(self, split: str = "train") -> np.ndarray:
        """Return the samples per client [N], int64, of "train", "test" or "validation"."""
        return np.diff(self.split(split).offsets)

    def client(self, split: str, i: int) -> np.ndarray:
        """Return the pool indices of client i in a split, int32."""
        require_whole("Client", i, 0, self.num_clients - 1)
        ragged = self.split(split)
        return ragged.idx[ragged.offsets[i] : ragged.offsets[i + 1]]

    def class_counts(self, labels: ArrayLike, num_classes: int, split: str = "train") -> np.ndarray:
        """Return the samples per client and class [N, C], int64, counted after `label_map`.

        Args:
          labels: labels of the pool (`Dataset.labels`).
          num_classes: C.
          split: "train", "test" or "validation".

        Raises:
          InputError: labels outside 0..C-1, or fewer labels than the largest index needs.
        """
        partition_checks.require_room(self.num_clients, num_classes)
        labels = partition_checks.checked_labels(labels, num_classes)
        ragged = self.split(split)
        needed = int(ragged.idx.max(initial=-1)) + 1
        require(len(labels) >= needed, "Number of labels", len(labels), f"at least {needed}")
        owners, seen = ragged.owners(), labels[ragged.idx]
        if self.label_map is not None:
            partition_checks.check_label_map(self, num_classes)
            seen = np.asarray(self.label_map)[owners, seen]
        flat = np.bincount(owners * num_classes + seen, minlength=self.num_clients * num_classes)
        return flat.reshape(self.num_clients, num_classes)

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {}
        for split, key in _FILE_KEYS.items():
            ragged = self.split(split)
            if split != "validation" or len(ragged.idx):
                arrays[f"{key}_idx"] = np.asarray(ragged.idx, "<i4")
                arrays[f"{key}_offsets"] = np.asarray(ragged.offsets, "<i8")
        tables = {name: getattr(self, name) for name in TABLES}
        return arrays | {k: np.asarray(v, "<i4") for k, v in tables.items() if v is not None}

    def hash(self) -> str:
        """Return the SHA-256 (hex) of the index lists and the tables, without the options."""
        digest = hashlib.sha256()
        for key, array in self._arrays().items():
            digest.update(f"{key} {array.shape};".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def content_hash(self, labels: ArrayLike) -> bytes:
        """Return the SHA-256 of the partition and the pool's labels, which name the data set."""
        return hashlib.sha256(
            self.hash().encode() + np.ascontiguousarray(labels).tobytes()
        ).digest()

    @checked
    def save(self, path: str | Path) -> None:
        """Write the arrays to a new NPZ file, which `load` reads.

        Raises:
          InputError: the file exists; a partition is never overwritten.
          OutputError: it can't be written; an incomplete file is removed.
        """
        buffer = io.BytesIO()
        names = {_NAMES: np.array(self.names)} if self.names else {}
        save_arrays(buffer, self._arrays() | names)
        path = Path(path)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                file = path.open("xb")
            except FileExistsError as error:
                raise InputError(
                    f"{path} exists and a partition is never overwritten: choose another name."
                ) from error
            try:
                with file:
                    file.write(buffer.getvalue())
            except OSError:
                path.unlink(missing_ok=True)
                raise

    @classmethod
    @checked
    def load(cls, path: str | Path) -> "Partition":
        """Read an NPZ file with one list of pool indices per client and split.

        Keys: `train_idx` [total] and `train_offsets` [N + 1], `test_idx`, `test_offsets`, and
        optionally `val_idx`, `val_offsets`, `label_map` [N, C], `turns` [N], `corruption` [N, 2];
        all integers. `client_names` [N] is text. Several lists may contain a sample, which `report`
        and `summary` show.

        Raises:
          InputError: not such a file, or offsets that don't describe N lists.
        """
        path = as_path("Path of a partition", path)
        required = ("train_idx", "train_offsets", "test_idx", "test_offsets")
        arrays = read_npz(path, required, ("val_idx", "val_offsets", *TABLES, _NAMES))
        names = arrays.pop(_NAMES, np.zeros(0, "U1"))
        text = names.dtype.kind == "U" and names.ndim == 1
        require(text, f"{_NAMES} in {path}", f"{names.dtype} {names.shape}", "text [N]")
        if ("val_idx" in arrays) != ("val_offsets" in arrays):
            raise InputError(f"{path} must have both of val_idx and val_offsets or neither.")
        for key, array in arrays.items():
            require(array.dtype.kind in "iu", f"{key} in {path}", str(array.dtype), "integers")
            axes = TABLES.get(key, 1)
            require(array.ndim == axes, f"Axes of {key} in {path}", array.ndim, f"{axes}")
            low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
            fits = low >= 0 and high < 2**31
            require(fits, f"{key} in {path}", f"{low}..{high}", "in 0..2**31 - 1")
        splits = {
            split: Ragged(arrays[f"{key}_idx"].astype("i4"), arrays[f"{key}_offsets"].astype("i8"))
            for split, key in _FILE_KEYS.items()
            if f"{key}_idx" in arrays
        }
        tables: dict[str, Any] = {k: arrays[k].astype(np.int32) for k in TABLES if k in arrays}
        loaded = cls(
            **splits,
            **tables,
            rule="file",
            options={"path": str(path)},
            allow_overlap=True,
            names=tuple(names.tolist()),
        )
        partition_checks.check_offsets(loaded)
        return loaded

    def validate(self, num_samples: int, num_classes: int, labels: ArrayLike) -> None:
        """Check the partition against a pool.

        Args:
          num_samples: size of the pool.
          num_classes: C.
          labels: labels of the pool [num_samples].

        Raises:
          InputError: offsets that don't describe N lists, an index outside the pool, a sample
            twice in one list, a label map of another shape or range, or, unless `allow_overlap`, a
            sample in several lists.
        """
        partition_checks.validate(self, num_samples, num_classes, labels)

    def overlaps(self) -> tuple[int, int]:
        """Return the numbers of samples of several clients, and of samples in two splits of one."""
        return statistics.overlaps(self)

    def report(self, labels: ArrayLike, num_classes: int, fewer_than: int = 10) -> dict[str, Any]:
        """Return facts for JSON, see `fedjax_pfl.data.partitions.statistics.report`."""
        return statistics.report(self, labels, num_classes, fewer_than)

    def summary(self) -> str:
        """Return lines on rule, sizes of each split, shift in features, overlap and hash."""
        return statistics.summary(self)

    def plot(self, dataset: "Dataset | None" = None, title: str | None = None) -> "Figure":
        """Plot the samples by client and class, or without `dataset` the clients' sizes.

        Args:
          dataset: the data set that was partitioned.
          title: title of the figure; the rule's name by default.
        """
        from fedjax_pfl.data.partitions import partition_plots  # matplotlib is slow to import

        if dataset is None:
            return partition_plots.size_bars(self, title)
        labels = dataset.labels
        names = dataset.class_names or None
        return partition_plots.heatmap(self, labels, dataset.num_classes, title, names)

    @checked
    def split_validation(self, fraction: float, seed: int) -> "Partition":
        """Move a random part of each client's training samples to validation.

        Args:
          fraction: part of each client's training samples, 0 <= fraction < 1, rounded to the
            nearest number; every client keeps at least one training sample.
          seed: a client's part depends only on the seed, its id and its samples.

        Raises:
          InputError: fraction outside its range, or validation samples exist already.
        """
        seed = require_whole("Validation seed", seed, 0, bits=63)
        fits = 0 <= fraction < 1
        require(fits, "validation_fraction", fraction, "a number of at least 0 and below 1")
        if len(self.split("validation").idx):
            raise InputError("The partition has validation samples already: split it only once.")
        train, validation = [], []
        for client, samples in enumerate(self.train.lists()):
            rng = np.random.default_rng([seed, client])
            moved = np.zeros(len(samples), bool)
            moved[rng.permutation(len(samples))[: held_out(fraction, len(samples))]] = True
            train.append(samples[~moved])
            validation.append(samples[moved])
        options = self.options | {"validation_fraction": fraction, "validation_seed": seed}
        return replace(
            self, train=Ragged.of(train), validation=Ragged.of(validation), options=options
        )
