"""The comparison of an algorithm with its reference, and its contract: one driver for all files.

A test file of an algorithm has one row:

    test_reference, test_contract = comparison(
        "ditto", ditto.run, settings={"proximal_weight": 0.7}, states={"server": "global"}, ...
    )

Which of its cases are costly follows from the row: see `cases`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import numpy as np
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.core.algorithm_registry import is_static
from fedjax_pfl.testing.checks import CHECKS
from fedjax_pfl.testing.toys import assert_close
from tests.algorithms.harness import (
    PATTERNS,
    Case,
    assert_losses,
    assert_steps,
    network_loss,
    stack,
)
from tests.algorithms.norms import everyones
from tests.engine.finals import final_in
from tests.references.setting import Setting

# They run in the program of the base comparison; the others need programs of their own.
QUICK_CHECKS = ("partial_participation", "permutation", "divergence", "others_data")
# Likewise, of promises of the engine: quick for the algorithms in WHOLE only.
ENGINE_CHECKS = (
    "recorded_matrices",
    "settings_in_one_program",
    "no_recompilation",
)
WHOLE = ("fedavg", "feddwa", "pfedla", "scaffold", "waffle")
# Likewise, of what privacy covers: quick for the algorithm that keeps a private head.
PRIVACY_CHECKS = ("uploads_withheld", "gradients_withheld")
PRIVATE = ("fedper",)
COSTLY_CHECKS = (*ENGINE_CHECKS, *PRIVACY_CHECKS, "padding", "sums_of_uploads")


@dataclass(frozen=True)
class Variant:
    """One way to run an algorithm.

    Attributes:
      settings: its hyperparameters, beside those of the row.
      reference: options of the reference; by default the hyperparameters.
      options: options of the federation, see `Case`.
      algorithm: the name of another algorithm of the same file.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    reference: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    algorithm: str = ""


@dataclass
class Compared:
    """A simulation and what its reference says of it.

    Attributes:
      case, algorithm, settings: what ran.
      pattern, variant: names of the case.
      states, records: the library's after rounds 0, 1, ..., and of rounds.
      setting, options: what the reference was given.
      wanted: the reference's results of each round.
    """

    case: Case
    algorithm: Any
    settings: dict[str, Any]
    pattern: str
    variant: str
    states: list
    records: list
    setting: Setting
    options: dict[str, Any] = field(default_factory=dict)
    wanted: list = field(default_factory=list)

    def rounds(self):
        return [Round(self, t) for t in range(len(self.records))]

    def personalized(self):
        """What the clients get as new ones after the last round, [N, ...]."""
        case = self.case
        final = final_in(self.states[-1], self.algorithm, case.federation, case.rounds)
        return jax.tree.map(lambda leaf: np.asarray(leaf[0]), final.personalize(case.federation))

    def newcomers(self):
        """(Their batches, samples and rate), with which they train then."""
        case = self.case
        batches = case.batches("personalize", starts=case.everyone)[-1]
        return batches, (case.x, case.y, case.rates[-1])


@dataclass
class Round:
    """Round t of a comparison: `before` and `state`, the record, and what the reference says."""

    compared: Compared
    t: int

    def __post_init__(self):
        c, t = self.compared, self.t
        self.case, self.settings = c.case, c.settings
        self.before, self.state, self.record = c.states[t], c.states[t + 1], c.records[t]
        self.wanted, self.cohort = c.wanted[t], c.case.cohorts[t]
        self.present, self.clients = c.case.present(t), self.record["clients"]

    def batches(self, name="batches"):
        """batches[i] of this round that the reference was given by this name."""
        options = self.compared.options
        return (options[name] if name in options else getattr(self.compared.setting, name))[self.t]

    def assert_mean(self, uniform=None):
        """The mixing matrix is one row: the members by size, or as the algorithm weights them."""
        if uniform is None:
            uniform = getattr(self.compared.algorithm, "weighting", "size") == "uniform"
        shares = self.present * (1 if uniform else self.case.sizes)
        np.testing.assert_allclose(self.record["matrices"]["mixing"], [shares / shares.sum()], 1e-9)

    def assert_copies(self, up, down=None):
        """What clients send and receive, in copies of every block, a number or [N] or [N, blocks].

        They receive as much as they send by default.
        """
        for way, copies in (("up", up), ("down", up if down is None else down)):
            found, copies = self.record[way], np.asarray(copies)
            wanted = np.broadcast_to(copies if copies.ndim > 1 else copies[..., None], found.shape)
            np.testing.assert_array_equal(found, wanted, err_msg=way)


@dataclass
class Comparison:
    """A row: an algorithm, its reference, and what they must agree in.

    Names of results may be paths: "private.params.head" of a state, "body.hidden" of the
    reference's dict; a path goes through lists of models.

    Attributes:
      algorithm: its registered name.
      run: the reference, `run(setting, **options)`; it returns a dict for each round.
      variants: `Variant`s by name, or only their hyperparameters; the first one is the base.
      settings, options: hyperparameters, and options of the federation, of all variants.
      patterns: participation and execution; the first one is the base.
      ours: hyperparameters that the reference does not take.
      renamed: the reference's names of others.
      given: what else the reference takes, a function of `Compared`: its options, or attributes of
        the `Setting` to replace.
      states: fields of the state, and the reference's results that they equal.
      joined: the reference's models of all clients: the server's layers with their private ones.
      scores: names of scored models, and the reference's models that have these test losses.
      matrices, clients: likewise, of the record.
      loss: loss(model, x, y) of one of the reference's scored models.
      steps: names of the batches on which a member takes gradients; none checks no steps.
      copies: of every block, that members send and receive, or (sent, received); None checks none.
      check: asserts what else holds, of each `Round`.
      finish: asserts what holds in the end, of `Compared`.
      new_clients: the models that new clients get, of `Compared` and of what they did get; or it
        asserts that itself, and returns None. It is called in the second pattern.
      make_case: `Case`, or a function of the same options.
    """

    algorithm: str
    run: Callable
    variants: Any = field(default_factory=lambda: {"base": {}})
    settings: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    patterns: Mapping[str, Mapping] = field(default_factory=lambda: PATTERNS)
    ours: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    given: Callable | None = None
    states: Mapping[str, str] = field(default_factory=dict)
    joined: str = ""
    scores: Mapping[str, str] = field(default_factory=dict)
    matrices: Mapping[str, str] = field(default_factory=dict)
    clients: Mapping[str, str] = field(default_factory=dict)
    loss: Callable = network_loss
    steps: tuple[str, ...] = ("batches",)
    copies: int | tuple[int, int] | None = 1
    check: Callable | None = None
    finish: Callable | None = None
    new_clients: Callable | None = None
    make_case: Callable[..., Case] = Case

    def __post_init__(self):
        self.variants: Mapping[str, Variant] = {
            name: value if isinstance(value, Variant) else Variant(value)
            for name, value in self.variants.items()
        }

    def make(self, variant: Variant):
        return pfl.make_algorithm(
            variant.algorithm or self.algorithm, {**self.settings, **variant.settings}
        )

    def cases(self, matrix: bool):
        """(pattern, variant) of the tests; all variants run in the first two patterns.

        The base case of each algorithm, and variants that share its program, are quick; the other
        variants and the second pattern are costly. All other cases belong to the matrix.
        """
        first, base, second = next(iter(self.variants)), *[*self.patterns][:2]
        bases = {v.algorithm: v for v in reversed(self.variants.values())}
        chosen = []
        for pattern in self.patterns:
            for name, variant in self.variants.items():
                of_base = self._shares_program(bases[variant.algorithm], variant)
                quick = pattern == base and of_base
                costly = pattern == base or (pattern == second and name == first)
                if quick or costly or (matrix and (pattern == second or name == first)):
                    marks = () if quick else pytest.mark.costly
                    chosen.append(pytest.param(pattern, name, marks=marks, id=f"{pattern}-{name}"))
        return chosen

    def _shares_program(self, base: Variant, variant: Variant) -> bool:
        """Whether two variants differ in values alone."""
        one, other = self.make(base), self.make(variant)
        if type(one) is not type(other) or base.options != variant.options:
            return False
        shapes = [[getattr(a, f.name) for f in fields(a) if is_static(f)] for a in (one, other)]
        return shapes[0] == shapes[1]

    def checks(self, matrix: bool):
        """(algorithm, check) of the contract, for each algorithm of the file."""
        names = dict.fromkeys(v.algorithm or self.algorithm for v in self.variants.values())
        chosen = []
        for name in names:
            for check in CHECKS:
                if check in QUICK_CHECKS or check in COSTLY_CHECKS or matrix:
                    engine = name in WHOLE and check in ENGINE_CHECKS
                    privacy = name in PRIVATE and check in PRIVACY_CHECKS
                    quick = check in QUICK_CHECKS or engine or privacy
                    marks = () if quick else pytest.mark.costly
                    chosen.append(pytest.param(name, check, marks=marks, id=f"{name}-{check}"))
        return chosen

    def compare(self, pattern: str, name: str) -> Compared:
        """Run both and compare them."""
        variant = self.variants[name]
        case = self.make_case(**{**self.patterns[pattern], **self.options, **variant.options})
        algorithm, settings = self.make(variant), {**self.settings, **variant.settings}
        states, records = case.run_rounds(algorithm)
        one = Compared(case, algorithm, settings, pattern, name, states, records, case.setting())
        options = settings if variant.reference is None else variant.reference
        options = {self.renamed.get(k, k): v for k, v in options.items() if k not in self.ours}
        options |= self.given(one) if self.given else {}
        changes = {f.name: options.pop(f.name) for f in fields(Setting) if f.name in options}
        one.setting, one.options = one.setting.but(**changes), options
        one.wanted = self.run(one.setting, **options)
        for now in one.rounds():
            self.compare_round(now)
        if self.finish:
            self.finish(one)
        if self.new_clients and pattern == [*self.patterns][1]:
            made = one.personalized()
            wanted = self.new_clients(one, made)
            if wanted is not None:
                assert_same(made, wanted, "new clients")
        return one

    def compare_round(self, now: Round) -> None:
        for path, name in self.states.items():
            assert_same(at(now.state, path), at(now.wanted, name), f"{path} of round {now.t}")
        if self.joined:
            found = everyones(now.state, now.case.num_clients)
            assert_same(found, at(now.wanted, self.joined), f"models of round {now.t}")
        for score, name in self.scores.items():
            models = at(now.wanted, name)
            each = [models] * now.case.num_clients if isinstance(models, dict) else models
            assert_losses(now.record, now.case, score, each, loss=self.loss)
        for matrix, name in self.matrices.items():
            found, wanted = now.record["matrices"][matrix], np.asarray(at(now.wanted, name))
            wanted = wanted[None] if wanted.ndim < found.ndim else wanted  # one row of the server
            np.testing.assert_allclose(found, wanted, 1e-9, 1e-9, err_msg=matrix)
        for value, name in self.clients.items():
            np.testing.assert_allclose(
                now.clients[value], at(now.wanted, name), 1e-9, 1e-9, err_msg=value
            )
        if self.steps:
            assert_steps(now.record, now.cohort, *(now.batches(name) for name in self.steps))
        if self.copies is not None:
            now.assert_copies(*(copies * now.present for copies in np.broadcast_to(self.copies, 2)))
        if self.check:
            self.check(now)


def comparison(algorithm, run, **row):
    """The tests of an algorithm against its reference and of its contract; see `Comparison`."""
    row = Comparison(algorithm, run, **row)

    def test_reference(pattern, variant):
        row.compare(pattern, variant)

    def test_contract(name, check):
        same = (v for v in row.variants.values() if (v.algorithm or algorithm) == name)
        CHECKS[check](row.make(next(same)))

    test_reference.cases = ("pattern", "variant"), row.cases
    test_contract.cases = ("name", "check"), row.checks
    return test_reference, test_contract


def at(value, path):
    """What a path of names leads to, through attributes, dicts and lists."""
    for name in filter(None, path.split(".")):
        if isinstance(value, list):
            value = [each[name] for each in value]
        else:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
    return value


def assert_same(actual, wanted, what):
    """A model or a stack of models, with or without "params", or an array."""
    if isinstance(wanted, list) and wanted and isinstance(wanted[0], dict):
        wanted = stack(wanted)["params"]
    if isinstance(wanted, dict):
        parts = dict(actual) if isinstance(actual, Mapping) else actual
        assert_close(parts.get("params", parts), wanted, what)
    else:
        np.testing.assert_allclose(actual, wanted, 1e-9, 1e-9, err_msg=what)
