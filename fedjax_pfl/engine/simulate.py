"""`simulate`, which runs an algorithm on a federation, and `compile_all` before several runs."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from fedjax_pfl.core.interface import Algorithm
from fedjax_pfl.engine.callbacks import Callback, Progress
from fedjax_pfl.engine.checkpoints import Checkpoints
from fedjax_pfl.engine.runs import Settings
from fedjax_pfl.engine.simulation import Simulation
from fedjax_pfl.execution import memory_maps
from fedjax_pfl.execution.platforms import cores
from fedjax_pfl.federation.adaptation import Adaptation
from fedjax_pfl.federation.federation import Federation
from fedjax_pfl.results.result import Result
from fedjax_pfl.utils.boundary import checked


@checked
def simulate(
    algorithm: Algorithm,
    federation: Federation,
    rounds: int,
    *,
    seeds: Sequence[int] = (0,),
    settings: Settings | None = None,
    eval_every: int = 1,
    adapt: Adaptation | None = None,
    score_clients: Sequence[int] | None = None,
    chunk: int | None = None,
    chunk_seconds: float = 2.0,
    matrix_rounds: Sequence[int] | None = None,
    progress: Callable[[Progress], None] | Callback | bool | None = None,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    stop: Callable[[Progress], bool] | None = None,
    patience: int | None = None,
) -> Result:
    """Run an algorithm for a number of rounds, for all seeds and settings in one program.

    It is `Simulation(algorithm, federation, ...).run(rounds, ...)`.

    Args:
      algorithm, federation, seeds, settings, eval_every, adapt, score_clients: see `Simulation`.
      rounds: communication rounds T.
      chunk, chunk_seconds, matrix_rounds, progress, callbacks, checkpoints, stop, patience: see
        `Simulation.run`.

    Returns:
      A `Result`; its arrays have the axes (seed, setting, round, client).

    Raises:
      InputError: an argument can't be used, or the checkpoints belong to another simulation; before
        anything is compiled.
      OutputError: a checkpoint can't be written, or a callback of another process has failed;
        earlier checkpoints are kept.
    """
    simulation = Simulation(
        algorithm,
        federation,
        seeds=seeds,
        settings=settings,
        eval_every=eval_every,
        adapt=adapt,
        score_clients=score_clients,
    )
    return simulation.run(
        rounds,
        chunk=chunk,
        chunk_seconds=chunk_seconds,
        matrix_rounds=matrix_rounds,
        progress=progress,
        callbacks=callbacks,
        checkpoints=checkpoints,
        stop=stop,
        patience=patience,
    )


@checked
def compile_all(simulations: Iterable[Simulation]) -> None:
    """Compile the programs of several simulations side by side, one on each core.

    XLA compiles a program mostly on one core. Each simulation's `run` then begins at once:

        simulations = [pfl.Simulation(pfl.make_algorithm(name), federation) for name in names]
        pfl.compile_all(simulations)
        results = [one.run(100) for one in simulations]

    Raises:
      InputError: `run` would refuse one of them.
    """
    memory_maps.make_room(several=True)
    with ThreadPoolExecutor(cores()) as pool:
        compiling = [(one, one.compile_in(pool)) for one in simulations]
        for simulation, seconds in compiling:
            simulation.compile_seconds = seconds()
