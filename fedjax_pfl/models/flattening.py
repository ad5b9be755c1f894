"""Detection of the parameters that are applied to flattened images, in a traced network.

Channels are last here and first in PyTorch, so a dense layer after a flattened image has its rows
in another order there. Only the traced program shows which layers these are.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from fedjax_pfl.models.kernels import forms
from fedjax_pfl.models.task import EVALUATION, Outputs, Task
from fedjax_pfl.utils import trees
from fedjax_pfl.utils.typing import Tree

CHANNELS = -1  # the label of an image's channels; its other axes are 0 (the batch), 1, 2, ...
# Elementwise primitives, and those from images to images.
SAME_PLACES = (
    "abs add add_any and ceil clamp convert_element_type copy copy_p cos div eq erf erf_inv exp "
    "exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min mul ne neg not "
    "optimization_barrier or pow reduce_precision rem round rsqrt select_n sign sin sqrt square "
    "stop_gradient sub tanh"
)
IMAGE_TO_IMAGE = (
    "concatenate cumsum dynamic_slice gather pad reduce_window reduce_window_max "
    "reduce_window_min reduce_window_sum rev slice"
)


class Layout(NamedTuple):
    """Order in which an image was flattened.

    Attributes:
      labels: the image's axes in that order; empty if unknown.
      sizes: sizes of these axes.
    """

    labels: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def turns_rows(self) -> bool:
        """Whether PyTorch's order of the flattened image differs, or may differ."""
        wide = [at for at, size in zip(self.labels, self.sizes, strict=True) if size > 1]
        return not self.labels or wide != sorted(wide)

    def from_torch(self, rows: np.ndarray) -> np.ndarray:
        """Permute rows [d, ...] from PyTorch's order, channels first, to this layout."""
        sizes = dict(zip(self.labels, self.sizes, strict=True))
        first = sorted(self.labels)
        apart = rows.reshape(*(sizes[label] for label in first), *rows.shape[1:])
        here = [first.index(label) for label in self.labels]
        return apart.transpose(*here, *range(len(here), apart.ndim)).reshape(rows.shape)


UNCLEAR = Layout((), ())
TRANSPOSED = Layout((-2,), (0,))  # of kernels of transposed convolutions


class _Seen(NamedTuple):
    """Facts about a value of the program.

    Attributes:
      params: paths of the leaves that it is computed from, if from nothing else.
      data: whether it depends on the network's inputs.
      labels: labels of an image's axes; () for other values.
      layout: layout of the last axis if that is a flattened image.
    """

    params: frozenset[str] = frozenset()
    data: bool = False
    labels: tuple[int, ...] = ()
    layout: Layout | None = None


def layouts(task: Task, shapes: Tree, inputs: jax.ShapeDtypeStruct) -> dict[str, Layout]:
    """Return the layouts of the flattened images that leaves are applied to, by path.

    Args:
      task: the task of the network.
      shapes: shapes of its model.
      inputs: shape of a batch.
    """

    def logits(model, x):
        outputs: Any = task.apply(model, x, *EVALUATION)
        return Outputs(*outputs).logits

    with forms.for_platform("gpu"):  # convolutions as such
        traced = jax.make_jaxpr(logits)(shapes, inputs)
    params = [_Seen(frozenset({path})) for path in trees.by_path(shapes)]
    by_path: dict[str, Layout] = {}
    _follow(traced.jaxpr, [*params, _Seen(data=True, labels=_labels(inputs.shape, 4))], by_path)
    return by_path


def _labels(shape: tuple[int, ...], least: int = 3) -> tuple[int, ...]:
    return (*range(len(shape) - 1), CHANNELS) if len(shape) >= least else ()


def _follow(jaxpr: Any, seen: list[_Seen], by_path: dict[str, Layout]) -> list[_Seen]:
    """Return facts about a program's outputs, and add layouts to `by_path`."""
    known = dict(zip(jaxpr.invars, seen, strict=True))

    def of(value):
        return _Seen() if isinstance(value, core.Literal) else known.get(value, _Seen())

    for equation in jaxpr.eqns:
        args = [of(value) for value in equation.invars]
        inner = _inner(equation)
        if inner is not None:
            results = _follow(inner, args, by_path)
        else:
            results = [_result(equation, args, out.aval.shape, by_path) for out in equation.outvars]
        known |= dict(zip(equation.outvars, results, strict=True))
    return [of(value) for value in jaxpr.outvars]


def _inner(equation: Any) -> Any:
    """Return the program that an equation calls once as a function; None for others."""
    if equation.primitive.name in ("scan", "while", "cond"):
        return None
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = equation.params.get(name)
        inner = getattr(inner, "jaxpr", inner)
        if hasattr(inner, "eqns") and len(inner.invars) == len(equation.invars):
            return inner
    return None


def _result(equation: Any, args: list[_Seen], shape: tuple[int, ...], by_path: dict) -> _Seen:
    """Return facts about an equation's output of a shape."""
    data = [(one, at) for at, one in enumerate(args) if one.data]
    params = frozenset().union(*(one.params for one in args if not one.data))
    if not data:
        return _Seen(params)
    layout = next((one.layout for one, _ in data if one.layout is not None), None)
    name = equation.primitive.name
    if layout is not None:
        contracted = name != "dot_general" or _last_axes_only(equation)
        _meet(by_path, params, layout if contracted else UNCLEAR)
    if name == "conv_general_dilated":
        if set(equation.params["lhs_dilation"]) - {1}:
            _meet(by_path, params, TRANSPOSED)
        where = equation.params["dimension_numbers"].out_spec  # (batch, channels, rows, columns)
        labels = dict(zip(where, (0, CHANNELS, *range(1, len(shape) - 1)), strict=True))
        return _Seen(data=True, labels=tuple(labels[axis] for axis in range(len(shape))))
    first, at = max(data, key=lambda pair: (pair[0].layout is not None, pair[0].labels))
    rule = RULES.get(name, _unknown)
    if name in SAME_PLACES.split():
        rule = _same
    elif name in IMAGE_TO_IMAGE.split():
        rule = _image
    elif name.startswith("reduce_"):
        rule = _reduced
    before = equation.invars[at].aval.shape
    return rule(first, before, shape, equation.params)._replace(data=True, params=frozenset())


def _meet(by_path: dict[str, Layout], paths: frozenset[str], layout: Layout) -> None:
    for path in paths:
        by_path[path] = layout if by_path.get(path, layout) == layout else UNCLEAR


def _last_axes_only(equation: Any) -> bool:
    """Return whether a product sums over the last axis of either factor and no other of it."""
    (left, right), _ = equation.params["dimension_numbers"]
    ends = [len(value.aval.shape) - 1 for value in equation.invars]
    return tuple(left) == (ends[0],) or tuple(right) == (ends[1],)


def _same(one, before, after, params) -> _Seen:
    return one if before == after else _unknown(one, before, after, params)


def _image(one, before, after, params) -> _Seen:
    return _Seen(labels=one.labels, layout=None if one.layout is None else UNCLEAR)


def _reduced(one, before, after, params) -> _Seen:
    axes = params.get("axes", ())
    labels = tuple(label for at, label in enumerate(one.labels) if at not in axes)
    layout = None if len(before) - 1 in axes else one.layout
    return _Seen(labels=labels if len(labels) > 2 else (), layout=layout)


def _transposed(one, before, after, params) -> _Seen:
    moved = params["permutation"]
    last = one.layout if moved[-1] == len(moved) - 1 else UNCLEAR
    labels = tuple(one.labels[at] for at in moved) if one.labels else ()
    return _Seen(labels=labels, layout=None if one.layout is None else last)


def _reshaped(one, before, after, params) -> _Seen:
    if one.layout is not None:
        return _Seen(layout=one.layout if after[-1:] == before[-1:] else UNCLEAR)
    if not one.labels:
        return _Seen()
    if len(after) == 2 and after[0] == before[0] and one.labels[0] == 0:
        return _Seen(layout=Layout(one.labels[1:], before[1:]))
    if after[-1:] == before[-1:]:  # the axes before the last one are taken apart or together
        ordered = one.labels == _labels(before)
        split = len(after) > len(before)
        return _Seen(labels=_labels(after) if ordered and split else ())
    together = after and after[-1] > before[-1] and before[-1] > 1
    return _Seen(layout=UNCLEAR if together else None)


def _product(one, before, after, params) -> _Seen:
    """Return facts about a product: images stay images over channels, flattened ones are summed."""
    return _Seen(labels=one.labels if len(before) == len(after) else ())


def _spread(one, before, after, params) -> _Seen:
    last = one.layout if after[-1:] == before[-1:] else UNCLEAR
    labels = one.labels if len(before) == len(after) else ()
    return _Seen(labels=labels, layout=None if one.layout is None else last)


def _squeezed(one, before, after, params) -> _Seen:
    reduced = _reduced(one, before, after, {"axes": params["dimensions"]})
    return reduced if one.layout is None else _spread(one, before, after, params)


def _unknown(one, before, after, params) -> _Seen:
    return _Seen(layout=None if one.layout is None else UNCLEAR)


RULES: Mapping[str, Callable[..., _Seen]] = {
    "transpose": _transposed,
    "reshape": _reshaped,
    "dot_general": _product,
    "broadcast_in_dim": _spread,
    "squeeze": _squeezed,
}
