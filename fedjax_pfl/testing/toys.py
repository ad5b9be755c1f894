"""A tiny federation for tests of algorithms, and comparison of states."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.data.dataset import dataset_from_arrays
from fedjax_pfl.data.federated import Batch, FederatedData
from fedjax_pfl.data.partitions.partition import Partition
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.federation.build import federate
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.federation.participation import Participation
from fedjax_pfl.models.mlp import MLP
from fedjax_pfl.models.normalization import BatchNorm
from fedjax_pfl.testing.programs import QuickProgram
from fedjax_pfl.uploads.pipeline import Uploads
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.structs import by_field, struct
from fedjax_pfl.utils.typing import Tree

ROUNDS = 4
SEEDS = (0, 1)
CAPACITY = 8
TRAIN_SIZES = (7, 3, 1, 10, 4)
TEST_SIZES = (3, 2, 1, 4, 0)


class TanhNetwork(nn.Module):
    """Two linear layers with tanh; overflows on inputs beyond 1e20.

    Initial weights are drawn in double precision if enabled, since those in single precision may
    differ by rounding between programs.
    """

    def setup(self):
        wide = jnp.result_type(float)
        self.hidden, self.head = (nn.Dense(width, param_dtype=wide) for width in (5, 3))

    def features(self, x):
        return nn.tanh(self.hidden(jnp.where(jnp.abs(x) > 1e20, jnp.inf, x)))

    def __call__(self, x):
        return self.head(self.features(x))


class Overflowing(MLP):
    """An MLP that overflows on inputs beyond 1e20."""

    def features(self, x):
        return super().features(jnp.where(jnp.abs(x) > 1e20, jnp.inf, x))


class OverflowingNormed(Overflowing):
    """`Overflowing` with batch normalization before the head."""

    def setup(self):
        super().setup()
        self.bn = BatchNorm()

    def features(self, x, train: bool = False, valid=None):
        return self.bn(super().features(x), train, valid)

    def __call__(self, x, train: bool = False, valid=None):
        return self.head(self.features(x, train, valid))


@struct
class PaddedData(FederatedData):
    """Data whose minibatches have other padding than a client's first sample.

    Attributes:
      padding: what is added to the inputs and labels of rows that are not valid.
    """

    padding: jax.Array | int = 0

    def batch(self, row, pool, valid, dtype, augment=None) -> Batch:
        batch = super().batch(row, pool, valid, dtype, augment)
        added = jnp.where(valid, 0, self.padding)
        labels = jnp.where(valid, batch.labels, (batch.labels + added) % self.num_classes)
        return Batch(batch.inputs + added[:, None].astype(batch.inputs.dtype), labels, valid)


@struct
class Withheld(Uploads):
    """The federation's uploads where some clients send what the server already holds.

    A client whose training failed counts, as under privacy.

    Attributes:
      ids: int32 [A], permanent ids of these clients.
    """

    ids: Any = None

    keeps_failed = True  # pyright: ignore[reportAssignmentType] - whatever the options

    def __call__(self, sent, reference, info, memory):
        sent = trees.where(jnp.isin(info.ids, self.ids), reference, sent)
        return super().__call__(sent, reference, info, memory)


def toy_for(algorithm: Algorithm, *sizes, **options) -> Federation:
    """Return a `toy_federation` with batch normalization and validation samples if needed."""
    normed = algorithm.batch_norm == "local"
    options.setdefault("model", OverflowingNormed(3, (5,)) if normed else TanhNetwork())
    options.setdefault("validation_size", 2 if algorithm.needs_validation else 0)
    return toy_federation(*sizes, **options)


def toy_federation(
    train_sizes=TRAIN_SIZES,
    test_sizes=None,
    *,
    validation_size: Any = 2,
    model: Any = None,
    order=None,
    diverging: int | None = None,
    magnitude: float = 1e30,
    changed: Sequence[int] = (),
    kept: Sequence[str] = (),
    spoiled: tuple[int, int] | None = None,
    withheld: Sequence[int] = (),
    fewer: Sequence[int] = (),
    absent: Sequence[int] | None = None,
    padding: int | None = None,
    seed: int = 0,
    **options,
) -> Federation:
    """Return a federation of clients with a few samples of 4 numbers in 3 skewed classes.

    Args:
      train_sizes, test_sizes: numbers of samples of each client.
      validation_size: number of samples of all clients, or of each.
      model: by default an MLP with 5 hidden units that overflows on huge inputs.
      order: permutation of the clients, which keep their permanent ids.
      diverging: a client whose samples are so large that its training overflows.
      magnitude: factor of that client's samples.
      changed: clients whose samples are replaced by samples of another class.
      kept: splits in which neither `changed` nor `diverging` changes samples.
      spoiled: a client whose first training sample overflows, and the label of this sample.
      withheld: clients whose uploads are replaced by their references.
      fewer: clients with one training sample less.
      absent: clients that take part in no round; None for a program in which nobody can arrive.
      padding: number added to the rows of minibatches that are padding; None adds nothing.
      seed: seed of the samples.
      **options: options of `federate`; by default double precision, batches of 4 and a learning
        rate of 0.3.
    """
    count = len(train_sizes)
    if test_sizes is None:
        test_sizes = [TEST_SIZES[i % len(TEST_SIZES)] for i in range(count)]
    held_out = np.broadcast_to(validation_size, count)
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(3, 4))
    lists, labels, samples, total = {"train": [], "test": [], "validation": []}, [], [], 0
    for i in range(count):
        shares = rng.dirichlet(np.ones(3))
        for name, size in (
            ("train", train_sizes[i]),
            ("test", test_sizes[i]),
            ("validation", held_out[i]),
        ):
            lists[name].append(np.arange(total, total + size))
            total += size
            drawn = rng.choice(3, size=size, p=shares)
            noise = 0.5 * rng.normal(size=(size, 4))
            if i in changed and name not in kept:
                drawn = np.full_like(drawn, (drawn[:1].sum() + 1) % 3)
            factors = np.ones((size, 1))
            if i == diverging and name not in kept:
                factors[:] = magnitude
            if spoiled is not None and (i, name) == (spoiled[0], "train"):
                factors[0], drawn[0] = magnitude, spoiled[1]
            labels.append(drawn)
            samples.append((centres[drawn] + noise) * factors)
    order = np.arange(count) if order is None else np.asarray(order)
    lists = {name: [parts[i] for i in order] for name, parts in lists.items()}
    samples = np.concatenate(samples).astype(np.float32)
    labels = np.concatenate(labels).astype(np.int32)
    dataset = dataset_from_arrays("toy", samples, labels, num_classes=3)
    options = {"dtype": "float64", "batch_size": 4, "learning_rate": 0.3} | options
    if "stragglers" in options:
        late = options["stragglers"]
        options["stragglers"] = {k: late[i] for k, i in enumerate(order.tolist()) if i in late}
    options.setdefault("client_execution", "map")
    model = Overflowing(3, (5,)) if model is None else model
    federation = federate(
        dataset, Partition.from_lists(**lists), model, client_ids=order, **options
    )
    if fewer:
        federation = replace(federation, data=_with_fewer(federation.data, fewer))
    if absent is not None:
        federation = replace(federation, participation=_without(federation.participation, absent))
    if padding is not None:
        data = PaddedData(**vars(federation.data), padding=jnp.asarray(padding, jnp.int32))
        federation = replace(federation, data=data)
    if not withheld:
        return federation
    stage = vars(federation.uploads or Uploads())
    return replace(federation, uploads=Withheld(**stage, ids=jnp.asarray(withheld, jnp.int32)))


def _without(part: Participation, absent: Sequence[int]) -> Participation:
    """Return the participation in which the clients at positions `absent` are never there."""
    whole = jnp.tile(jnp.array([0, 2**31 - 1], jnp.int32), (len(part.delay), 1))
    window = whole if part.window is None else part.window
    return replace(part, window=window.at[jnp.asarray(absent, int)].set(0))


def _with_fewer(data: FederatedData, fewer: Sequence[int]) -> FederatedData:
    """Return the data without the last training sample of the clients with ids `fewer`."""
    train, less = data.train, jnp.isin(data.ids, jnp.asarray(fewer))
    last = data.labels[train.index[train.offset + train.size - 1]]
    lost = less[:, None] & (last[:, None] == jnp.arange(data.num_classes))
    size = (train.size - less).astype(train.size.dtype)
    return replace(data, train=replace(train, size=size), class_counts=data.class_counts - lost)


def toy_program(
    algorithm: Algorithm,
    federation: Federation,
    rounds: int = ROUNDS,
    capacity: int = CAPACITY,
    scored: tuple[int, ...] | None = None,
) -> QuickProgram:
    """Return a program of two seeds; `scored` are the rows of clients whose models are scored."""
    federation = algorithm.prepare(federation)
    runs = make_runs(algorithm, federation, SEEDS)
    return QuickProgram(runs, federation, rounds, capacity=capacity, scored=scored)


def run_rounds(
    algorithm: Algorithm, federation: Federation, rounds: int = ROUNDS, *args, **options
) -> tuple[list[Tree], list[dict]]:
    """Run the first seed of `toy_program`.

    Returns:
      (states after 0, 1, ... rounds, records of rounds) on the host.
    """
    program = toy_program(algorithm, federation, rounds, *args, **options)
    states = program.start()
    seen, records = [first_run(program.to_host(states))], []
    for t in range(rounds):
        states, buffers, matrices = program.advance(states, t, 1)
        record = jax.tree.map(lambda leaf: np.array(leaf)[0, 0], buffers)
        records.append({**record, "matrices": first_run(matrices)})
        seen.append(first_run(program.to_host(states)))
    return seen, records


def states_of(algorithm: Algorithm, federation: Federation, *args, **options) -> list[Tree]:
    """Return the states of `run_rounds` without scoring, which compiles faster."""
    return run_rounds(algorithm, federation, *args, scored=(), **options)[0]


def first_run(states: Tree) -> Tree:
    """Return the first run of leaves [R, ...] on the host."""
    return jax.tree.map(lambda leaf: np.array(leaf)[0], states)


def without_rows(state: Tree, clients: Sequence[int]) -> Tree:
    """Return a state without what some clients have, but with what others have of them."""

    def others(value: Tree, axes: int) -> Tree:
        return jax.tree.map(lambda x: np.delete(x, clients, 0), value) if axes else value

    return by_field(others, state)


def assert_close(actual: Tree, desired: Tree, what: str, tolerance: float = 1e-9) -> None:
    """Assert that trees are equal up to `tolerance`, relative and absolute; 0 for equal bits."""
    leaves, structure = jax.tree.flatten(actual)
    others = jax.tree.leaves(desired)
    assert len(leaves) == len(others), f"{what}: {len(leaves)} leaves against {len(others)}"
    desired = jax.tree.unflatten(structure, others)  # a reference's may be dicts for structs
    if tolerance:
        options = {"rtol": tolerance, "atol": tolerance}
        chex.assert_trees_all_close(actual, desired, **options, custom_message=what)
    else:
        chex.assert_trees_all_equal(actual, desired, custom_message=what)


def in_double_precision(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with 64-bit types enabled."""

    def run(*args, **kwargs):
        with jax.enable_x64(True):
            return fn(*args, **kwargs)

    run.__name__, run.__doc__ = fn.__name__, fn.__doc__
    return run


class count_compilations:
    """Context manager that returns a list with one entry per program compiled by XLA."""

    _lists: ClassVar[list[list]] = []
    _listening: ClassVar[bool] = False

    def __enter__(self) -> list:
        if not count_compilations._listening:
            jax.monitoring.register_event_duration_secs_listener(self._heard)
            count_compilations._listening = True
        self.events = []
        self._lists.append(self.events)
        return self.events

    def __exit__(self, *_) -> None:
        # By identity: two empty lists are equal.
        self._lists[:] = [events for events in self._lists if events is not self.events]

    @classmethod
    def _heard(cls, event: str, duration_secs: float, **_) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            for events in cls._lists:
                events.append(duration_secs)
