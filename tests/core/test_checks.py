"""An algorithm's mistakes raise a sentence where they happen."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

import jax
import pytest

import fedjax_pfl as pfl
from fedjax_pfl.core.algorithm_registry import ALGORITHMS
from fedjax_pfl.engine.compiled import advance
from fedjax_pfl.engine.program import Program
from fedjax_pfl.engine.runs import make_runs
from fedjax_pfl.testing import suite, toys
from fedjax_pfl.testing.checks import PROGRAMS
from fedjax_pfl.testing.suite import check_algorithm
from fedjax_pfl.utils import trees


@pytest.fixture(autouse=True)
def known_algorithms():
    before = dict(ALGORITHMS)
    yield
    ALGORITHMS.clear()
    ALGORITHMS.update(before)


@pytest.fixture(autouse=True)
def smaller_programs(monkeypatch):
    def toy_for(*args, **options):
        return toys.toy_for(*args, **options, validation_size=0)

    monkeypatch.setattr("fedjax_pfl.testing.checks.toy_for", toy_for)


@pfl.core.struct
class State:
    models: Any = pfl.core.per_client()


@pfl.core.struct
class Counting:
    models: Any = pfl.core.per_client()
    count: Any = pfl.core.per_server()


class Right(pfl.Algorithm):
    """Local training, the cohort's members put back."""

    def init(self, ctx):
        return State(ctx.replicate(ctx.initial_model()))

    def round(self, ctx, state):
        trained, cohort, _ = ctx.train(ctx.cohort.gather(state.models))
        return State(cohort.scatter(state.models, trained)), ctx.record(cohort)

    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.models, rows)}


class NoGather(Right):
    def round(self, ctx, state):
        trained, cohort, _ = ctx.train(state.models)
        return State(cohort.scatter(state.models, trained)), ctx.record(cohort)


class NoScatter(Right):
    def round(self, ctx, state):
        trained, cohort, _ = ctx.train(ctx.cohort.gather(state.models))
        return State(trained), ctx.record(cohort)


class ScattersAll(Right):
    def round(self, ctx, state):
        _, cohort, _ = ctx.train(ctx.cohort.gather(state.models))
        return State(cohort.scatter(state.models, state.models)), ctx.record(cohort)


class NoRecord(Right):
    def round(self, ctx, state):
        return super().round(ctx, state)[0]


class OtherState(Right):
    def round(self, ctx, state):
        _, record = super().round(ctx, state)
        return State({"other": state.models}), record


class NoState(Right):
    def init(self, ctx):
        return {"models": ctx.replicate(ctx.initial_model())}


class NoClientAxis(Right):
    def init(self, ctx):
        return State(ctx.initial_model())


class WrongMatrix(Right):
    def round(self, ctx, state):
        trained, cohort, _ = ctx.train(ctx.cohort.gather(state.models))
        weights = pfl.mixing.by_size(ctx.sizes(), cohort.mask)
        mixed = ctx.mix(weights, trained, onto=trained)
        return State(cohort.scatter(state.models, mixed)), ctx.record(cohort)


class OneModel(Right):
    def round(self, ctx, state):
        trained, cohort, _ = ctx.train(ctx.initial_model())
        return State(cohort.scatter(state.models, trained)), ctx.record(cohort)


class OtherType(Right):
    def init(self, ctx):
        return Counting(super().init(ctx).models, jax.numpy.zeros((), "int32"))

    def round(self, ctx, state):
        new, record = super().round(ctx, state)
        return Counting(new.models, state.count + jax.numpy.float32(1)), record


class KeepsKey(Right):
    def init(self, ctx):
        return Counting(super().init(ctx).models, jax.random.key(0))


class WeaklyTyped(OtherType):
    def init(self, ctx):
        return Counting(super().init(ctx).models, 0)


class NoModels(Right):
    def models(self, ctx, state, rows):
        return pfl.Broadcast(trees.row(state.models, 0))


class NoPersonalized(Right):
    def models(self, ctx, state, rows):
        return {"global": trees.take(state.models, rows)}


class AllModels(Right):
    def models(self, ctx, state, rows):
        return {"personalized": state.models}


def registered(cls, name="mine"):
    """A class of its own under that name."""
    return pfl.core.algorithm(name)(type(cls.__name__, (cls,), {}))


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (pfl.Algorithm, r"mine must define init\(self, ctx\)"),
        (NoGather, r"must lead with a row for each of 3 clients.*cohort\.gather"),
        (NoScatter, r"mine\.round must return state.*float64\[5.*got float64\[3.*scatter"),
        (ScattersAll, "the scattered values must lead with a row for each of 3 clients"),
        (NoRecord, r"round must return \(state, ctx\.record\(\.\.\.\)\), got State"),
        (OtherState, "must return a state of the same structure"),
        (NoState, "init must return a state, a class decorated with struct, got dict"),
        (NoClientAxis, r"init: models.* must lead with 1 client axes of 5"),
        (KeepsKey, r"init: count is a random key.*ctx\.key_for\(purpose\)"),
        (WrongMatrix, r"weights must be \[receivers, senders\], here \(3, 3\)"),
        (OneModel, r"models to train must lead with a row for each of 3.*Broadcast\(model\)"),
        (OtherType, r"state\.count of the same type, int32\[\], got float32\[\]\. Cast one"),
        (NoModels, r"models must name 'personalized', got Broadcast"),
        (NoPersonalized, r"models must name 'personalized', got \['global'\]"),
        (AllModels, "models: personalized must lead with a row for each of 2 clients"),
    ],
)
def test_mistakes_of_an_algorithm(cls, said):
    algorithm = registered(cls)()
    with pytest.raises((TypeError, NotImplementedError), match=said):
        for name in ("partial_participation", "models_of_some_clients"):
            check_algorithm(algorithm, only=name)


@pytest.mark.costly
def test_a_weakly_typed_state_compiles_the_rounds_once():
    """The number 0, an int, is the float that rounds make of it from the first call on."""
    federation = toys.toy_federation([4, 4], dtype="float32", validation_size=0)
    program = Program(make_runs(registered(WeaklyTyped)(), federation, (0,)), federation, 2)
    before, states = advance._cache_size(), program.start()
    for t in range(2):
        states = program.advance(states, t, 1).states
    assert advance._cache_size() == before + 1
    assert states.count.dtype == "float32" and states.count == 2


class Deciding(Right):
    mu: float = 0.5

    def round(self, ctx, state):
        if self.mu > 0:
            return super().round(ctx, state)
        return state, ctx.record(ctx.cohort)


class Counted(Right):
    def models(self, ctx, state, rows):
        return {"personalized": trees.take(state.models, rows[: int(ctx.t)])}


class Unnormalized(Right):
    def round(self, ctx, state):
        state, _ = super().round(ctx, state)
        weights = jax.numpy.ones((ctx.cohort.size, ctx.cohort.size))
        return state, ctx.record(ctx.cohort, mixing=weights)


@pytest.mark.costly
def test_decisions_on_traced_numbers_are_explained():
    with pytest.raises(pfl.InputError) as error:
        check_algorithm(pfl.core.algorithm("mine")(Deciding)(), only="partial_participation")
    text = str(error.value)
    assert text.startswith("mine.round asks in line ")
    assert "`if self.mu > 0:`, for the value of a traced number" in text
    assert "mu: float = pfl.core.static(default=0.5)." in text and "jax.lax.cond" in text
    with pytest.raises(pfl.InputError, match=r"counted\.models asks in line .*int\(ctx\.t\)"):
        check_algorithm(pfl.core.algorithm("counted")(Counted)(), only="partial_participation")


@pytest.mark.costly
def test_rows_that_do_not_sum_to_one_are_answered_with_the_fix():
    with pytest.raises(pfl.InputError, match=r"must be one \(mixing\.normalize\(weights\).*got 3"):
        check_algorithm(registered(Unnormalized)(), only="partial_participation")


class Twice(Right):
    """A second training, from the same cohort or the first training's, with fewer epochs."""

    chained: ClassVar = True
    purpose: ClassVar = "again"
    options: ClassVar = {}

    def round(self, ctx, state):
        once, cohort, _ = ctx.train(ctx.cohort.gather(state.models))
        begin = cohort if self.chained else ctx.cohort
        second = replace(ctx.federation.schedule, epochs=1)
        twice, cohort, _ = ctx.train(
            once, begin, purpose=self.purpose, schedule=second, **self.options
        )
        return State(cohort.scatter(state.models, twice)), ctx.record(cohort)


class NotChained(Twice):
    chained: ClassVar = False


class ReusesAKey(Twice):
    purpose: ClassVar = "train"


class SharesMinibatches(ReusesAKey):
    options: ClassVar = {"same_minibatches": True}


class FirstCohort(Right):
    def round(self, ctx, state):
        trained, cohort, _ = ctx.train(ctx.cohort.gather(state.models))
        return State(cohort.scatter(state.models, trained)), ctx.record(ctx.cohort)


class Gradient(Right):
    """A full gradient, which counts as a step, beside the training."""

    def round(self, ctx, state):
        received = ctx.cohort.gather(state.models)
        ctx.full_gradient(received, ctx.cohort)
        trained, cohort, _ = ctx.train(received)
        return State(cohort.scatter(state.models, trained)), ctx.record(cohort)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (ReusesAKey, "trains twice with the key of 'train': give one"),
        (NotChained, r"local steps in round 1 and its record has .*one before"),
        (FirstCohort, r"in round 1 and its record has \[0, 0, 0, 0, 0\]: .*ctx\.record"),
        (Gradient, "in round 1 and its record has"),
    ],
)
def test_steps_that_vanish_and_keys_that_are_used_twice(cls, said):
    with pytest.raises(AssertionError, match=said):
        check_algorithm(registered(cls)(), only="recorded_steps")


@pytest.mark.parametrize("cls", [Twice, pytest.param(SharesMinibatches, marks=pytest.mark.costly)])
def test_a_second_training_that_is_recorded(cls):
    check_algorithm(registered(cls)(), only="recorded_steps")


class LearnsFromPadding(Right):
    """A loss over all rows of a minibatch, of which the last ones may be padding."""

    def round(self, ctx, state):
        def over_all_rows(params, batch, broadcast, client):
            at = jax.numpy.arange(len(batch.labels))
            return -jax.numpy.mean(jax.nn.log_softmax(batch.logits)[at, batch.labels])

        received = ctx.cohort.gather(state.models)
        trained, cohort, _ = ctx.train(received, extra_loss=over_all_rows)
        return State(cohort.scatter(state.models, trained)), ctx.record(cohort)


class ChangesAbsentClients(Right):
    def round(self, ctx, state):
        new, record = super().round(ctx, state)
        return State(jax.tree.map(lambda leaf: 0.9 * leaf, new.models)), record


class RecordsOtherWeights(ALGORITHMS["fedavg"]):
    """The record has equal weights, the server's model those of sizes."""

    def round(self, ctx, state):
        state, _ = super().round(ctx, state)
        equal = pfl.mixing.normalize(ctx.cohort.mask.astype(ctx.dtype))
        return state, ctx.record(ctx.cohort, mixing=equal)


@pytest.mark.parametrize(
    ("cls", "check", "said"),
    [
        (LearnsFromPadding, "padding", "padding rows of minibatches changed the state"),
        (RecordsOtherWeights, "recorded_matrices", "'mixing' of round 1 has rows that no function"),
        (ChangesAbsentClients, "partial_participation", "models of absent clients in round 1"),
    ],
)
def test_mistakes_that_change_numbers(cls, check, said):
    with pytest.raises(AssertionError, match=said):
        check_algorithm(registered(cls)(), only=check, show=None)


def test_text_that_is_not_static_is_refused():
    class Worded(Right):
        kind: str = "a"

    worded = pfl.core.algorithm("worded")(Worded)()
    with pytest.raises(pfl.InputError, match=r"kind of worded is text.*core.static\('a'\)"):
        pfl.simulate(worded, toys.toy_federation(dtype="float32"), 1)


def test_the_suite_shows_what_it_does(capsys, monkeypatch):
    ran = []
    checks = {"first": lambda a: ran.append("first"), "second": lambda a: ran.append("second")}
    checks["first"].__doc__ = "One of them."
    monkeypatch.setattr("fedjax_pfl.testing.suite.CHECKS", checks)
    algorithm = registered(Right)()
    assert check_algorithm(algorithm) == ("first", "second") == tuple(ran)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 checks of mine: about 6 s on two idle cores, to compile."
    assert lines[1] == "1/2 first, 0 s so far: One of them."
    assert lines[-1] == "mine passes 2 checks in 0 s: first, second."
    assert check_algorithm(algorithm, only="second", show=None) == ("second",)
    assert capsys.readouterr().out == ""


def test_a_check_finds_its_program_compiled():
    algorithm = registered(Right)()
    with ThreadPoolExecutor(1) as pool:
        assert suite._begin(PROGRAMS["padding"], algorithm, pool)() > 0
    with toys.count_compilations() as compiled:
        check_algorithm(algorithm, only="padding", show=None)
    assert not compiled


def test_what_is_no_algorithm():
    class Other(Right):
        pass

    with pytest.raises(pfl.InputError, match="decorate the class"):
        check_algorithm(Other())
    cls = registered(Right)
    with pytest.raises(pfl.InputError, match=r"got the class Right: write Right\("):
        check_algorithm(cls)
    with pytest.raises(pfl.InputError, match="must be a subclass of Algorithm"):
        pfl.core.algorithm("else")(State)
    with pytest.raises(pfl.InputError, match="is registered already"):
        registered(NoGather)


def test_a_hyperparameter_has_a_type():
    class Bare(Right):
        keep = 0.5

    with pytest.raises(pfl.InputError, match=r"a hyperparameter reads keep: float = 0\.5"):
        pfl.core.algorithm("bare")(Bare)

    class Constant(Right):
        row_stochastic = False
        _steps = 3

    assert pfl.core.algorithm("constant")(Constant).row_stochastic is False
