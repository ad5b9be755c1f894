"""Probes of finished runs: their rebuilt federation and models, and one further local epoch.

The federation comes from the flags in `config.json` and the clients' samples in `partition.npz`,
the models from `models.npz`; nothing is written. The epoch is that of the round after the last.
No code is loaded from the folder: plugins are those of this command line.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_pfl as pfl
from fedjax_pfl import similarity
from fedjax_pfl.data.atomic_files import read_json
from fedjax_pfl.results.result_files import damaged
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.errors import InputError, require_classes, shown, unknown_name
from fedjax_pfl.utils.typing import Tree

from ..cli import flag_roles, flags, identity, plugins, run_folder
from ..cli.algorithms import setting_flags
from ..cli.build import Experiment, load_inputs, prepare
from .runs import CONFIG, Run

# Flags that the saved partition replaces, or that local training does not use.
_LEFT_OUT = (
    flag_roles.COMPARED | flag_roles.PARTITION | flag_roles.MEASUREMENTS | flag_roles.RECORDED
    | flag_roles.NEUTRAL | flag_roles.CODE
) - {"data_dir"}  # fmt: skip


def rebuild(run: Run, data_dir: str = "", without: Sequence[str] = ()) -> Experiment:
    """Rebuild the experiment of a run from its flags and saved partition.

    Args:
      data_dir: folder with the data set, if it isn't that of the run's flags.
      without: flags that stay at their defaults.

    Raises:
      InputError: the partition or the data set isn't there, the run had other files of the user's
        own than this command, or frozen leaves began with another file's values.
    """
    files = _words(run, "import_file", run.config["flags"]["comparison"].get("import_file") or [])
    code = _words(run, "code", run.config["code"]) if "code" in run.config else None
    plugins.require(str(run.folder), code, files)
    saved = run.folder.parent / "partition.npz"
    if not saved.exists():
        raise InputError(f"{run.folder.parent} has no partition.npz, so clients have no samples.")
    words = [f"--algorithms={run.algorithm}", f"--partition_file={saved}"]
    words += setting_flags(run.algorithm, run.hyperparameters)
    words += setting_flags(run.algorithm, run.training)
    groups = flags.parse(["figures"]).by_group().values()
    known = {name for group in groups for name in group}
    for group, values in run.config["flags"].items():
        for name, value in values.items():
            if group == "rule" or name in _LEFT_OUT or name in without or value is None:
                continue
            if name not in known:
                raise damaged(run.folder / CONFIG, f"{shown(name)} is not a flag of a run")
            if name == "init_from" and not run.config["model"].get("frozen"):
                continue  # the saved models have all leaves
            if name == "data_dir" and data_dir:
                value = data_dir
            words += flags.flag_words(name, value)
    if data_dir and run.config["flags"]["data"].get("data_dir") is None:
        words.append(f"--data_dir={data_dir}")
    experiment = prepare(load_inputs(flags.parse(["figures", *words])))
    _check_initial(run, experiment)
    return experiment


def _words(run: Run, name: str, value: Any) -> list[str]:
    """Return a list of texts of a run's configuration."""
    if not (isinstance(value, list) and all(isinstance(word, str) for word in value)):
        raise damaged(run.folder / CONFIG, f"{name} must be a list of texts, and is {shown(value)}")
    return value


def _check_initial(run: Run, experiment: Experiment) -> None:
    """Raise `InputError` if the run had another file of initial values."""
    record = run.folder.parent / run_folder.RECORD
    now = experiment.identity.get(identity.INITIAL)
    if now is None or not record.exists():
        return
    before = (read_json(record).get("flags") or {}).get(identity.INITIAL, now)
    if before != now:
        raise InputError(
            f"{experiment.config.init_from} has changed since {run.folder} began with it, and the "
            "frozen leaves are its."
        )


def federation_of(run: Run, data_dir: str = "", without: Sequence[str] = ()) -> pfl.Federation:
    """Return the prepared federation of a run."""
    experiment = rebuild(run, data_dir, without)
    algorithm = experiment.config.instances[run.algorithm]
    return algorithm.prepare(experiment.federation_of(run.algorithm))


def saved_models(run: Run, row: int, federation: pfl.Federation, name: str) -> Tree:
    """Return models [N, ...] of the seed at `row`, in the form of the federation's task.

    Raises:
      InputError: no such model was saved.
    """
    path = run.folder / "models.npz"
    axes = pfl.results.model_axes(path)
    if name not in axes:
        raise unknown_name(f"model in {path}", name, axes)
    held = pfl.load_models(path)[name]
    shapes = jax.eval_shape(lambda: federation.initial_model(jax.random.key(0)))
    if jax.tree.leaves(held) and all(_within(held, at) is None for at in _paths(shapes)):
        others = [repr(other) for other in axes if other != name]
        known = f": it has {', '.join(others)} too" if others else ""
        raise InputError(
            f"The models {name!r} of {path} are not single networks, but what an algorithm made of "
            f"several. This figure needs single ones{known}."
        )

    def leaf(key_path, shape):
        leaf_name = trees.path_name(key_path)
        value = _within(held, leaf_name)
        shared = axes[name] == ("seed",)
        wanted = (len(run.seeds), *(() if shared else (run.num_clients,)), *shape.shape)
        if value is None or value.shape != wanted or value.dtype.kind not in "biuf":
            raise damaged(path, f"its model {name!r} has no {leaf_name} {list(wanted)}")
        one = jnp.asarray(value[row], shape.dtype)
        return jnp.broadcast_to(one, (run.num_clients, *shape.shape)) if shared else one

    return jax.tree_util.tree_map_with_path(leaf, shapes)


def _paths(model: Tree) -> list[str]:
    return [trees.path_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(model)[0]]


def _within(model: Tree, path: str) -> np.ndarray | None:
    """Return the array at a path of a saved model, or None."""
    for part in path.split("/"):
        model = model.get(part) if isinstance(model, dict) else None
    return model if isinstance(model, np.ndarray) else None


def saved_names(run: Run, prefix: str) -> list[str]:
    """Return names of saved models that are a prefix and a number, by that number."""
    ends = {
        name.removeprefix(prefix): name
        for name in pfl.results.model_axes(run.folder / "models.npz")
    }
    return [ends[end] for end in sorted(filter(str.isdecimal, ends), key=int)]


def context(federation: pfl.Federation, seed, rounds) -> pfl.Context:
    """Return the round that would follow after `rounds` rounds.

    A schedule of the rate has ended by then, perhaps at zero: the rate is that of the last round.
    """
    schedule = federation.training.make_lr_schedule()
    if schedule is not None:
        federation = federation.replace_training(
            lr_schedule=lambda _, total: schedule(total - 1, total)
        )
    t, key = jnp.asarray(rounds, jnp.int32), jax.random.key(seed)
    cohort = federation.participation.cohort(key, t, federation.data.ids)
    return pfl.Context(federation.with_backbone(key), key, t, t, cohort)


def similarity_by_block(
    run: Run, row: int, federation: pfl.Federation, name: str
) -> tuple[list[str], np.ndarray]:
    """Return the similarity of the updates of one local epoch by block.

    Every client trains one epoch from its own model; its update is the change.

    Returns:
      (names of the L blocks with parameters, cosines [L, N, N], NaN for clients that diverged).
    """
    models = saved_models(run, row, federation, name)
    rounds = run.result.rounds
    cosines, finite = _cosines(federation, models, run.seeds[row], rounds)
    bad = ~np.asarray(finite)
    cosines = np.where(bad[:, None] | bad[None, :], np.nan, np.asarray(cosines, float))
    return _trainable_blocks(federation.plan), cosines


@jax.jit
def _cosines(federation, models, seed, rounds):
    ctx = context(federation, seed, rounds)
    schedule = replace(federation.schedule, epochs=1, steps=None)
    trained, cohort, _ = ctx.train(models, ctx.cohort_of(), schedule=schedule)
    update = jax.tree.leaves(jax.tree.map(jnp.subtract, trained, models))
    plan = federation.plan
    return jnp.stack([
        similarity.cosines(*[[update[i] for i in _leaves_of(plan, block)]] * 2)
        for block in _trainable_blocks(plan)
    ]), cohort.mask  # fmt: skip


def _leaves_of(plan: pfl.core.LeafPlan, block: str) -> list[int]:
    return [
        i for i, path in enumerate(plan.paths)
        if plan.blocks[plan.block_of[i]] == block and path.startswith("params/")
    ]  # fmt: skip


def _trainable_blocks(plan: pfl.core.LeafPlan) -> list[str]:
    return [block for block in plan.blocks if _leaves_of(plan, block)]


def norms_by_minibatch(
    run: Run, row: int, federation: pfl.Federation, name: str, client: int, weight: float
) -> np.ndarray:
    """Return a client's class norms before and after each minibatch of an epoch, [1 + K, C].

    Args:
      weight: lambda of the weight distribution regularizer during that epoch.
    """
    model = jax.tree.map(lambda leaf: leaf[client][None], saved_models(run, row, federation, name))
    schedule = replace(federation.schedule, epochs=1, steps=None)
    steps = int(schedule.total_steps(int(federation.data.train.size[client])))
    place = (run.seeds[row], run.result.rounds, client, jnp.float32(weight))
    return np.asarray(_norms(federation, model, *place, steps=steps), float)


@partial(jax.jit, static_argnames="steps")
def _norms(federation, model, seed, rounds, client, weight, steps):
    ctx = context(federation, seed, rounds)
    plan, num_classes = federation.plan, federation.data.num_classes

    wdr = pfl.training.WeightDistribution(weight)

    def estimate(params):
        return pfl.training.estimated_class_shares(params, plan, num_classes)

    def regularizer(params, batch, broadcast, client):
        return wdr(params, batch, client, plan)

    step = ctx.sgd_step(extra_loss=regularizer)

    def recording_step(carry, batch, rng, broadcast, client):
        state, norms = carry
        state = step(state, batch, rng, broadcast, client)
        return state, norms.at[client.step + 1].set(estimate(state.model["params"]))

    first = jax.vmap(lambda one: estimate(one["params"]))(model)
    norms = jnp.zeros((1, steps + 1, num_classes), first.dtype).at[:, 0].set(first)
    (_, norms), *_ = ctx.run_clients(
        recording_step,
        (step.begin_all(model), norms),
        rows=jnp.asarray(client, jnp.int32)[None],
        schedule=replace(federation.schedule, epochs=1, steps=None),
    )
    return norms[0]


def model_class_norms(federation: pfl.Federation, models: Tree) -> np.ndarray:
    """Return class norms [N, C] of a stack of models (cwFedAVG, eq. 9)."""
    plan, num_classes = federation.plan, federation.data.num_classes
    one = jax.vmap(lambda params: pfl.training.estimated_class_shares(params, plan, num_classes))
    return np.asarray(one(models["params"]), float)


def class_shares(federation: pfl.Federation) -> np.ndarray:
    """Return the class shares of each client's training samples, [N, C].

    Raises:
      InputError: the data set's task has no classes.
    """
    require_classes("A figure of class norms", bool(federation.data.num_classes))
    counts = np.asarray(federation.data.class_counts, float)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
