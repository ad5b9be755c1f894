"""Errors for guessed names of attributes, which say what to write instead."""

from collections.abc import Iterable
from typing import Any

from fedjax_pfl.utils.name_matching import normalized, suggestions

SIMULATE = "pfl.simulate(algorithm, federation, rounds=20)"
# By class: what to write, and the guesses that it answers, normalized; [] is an index.
INSTEAD = {
    "fedjax_pfl": {
        SIMULATE: "train fit run server trainer",
        "pfl.federate(dataset, partition)": "client clients makefederation",
        "@pfl.core.algorithm('NAME')": "register registeralgorithm",
        "sorted(pfl.core.ALGORITHMS)": "algorithmnames listalgorithms",
        "sorted(pfl.data.DATASETS)": "datasetnames listdatasets",
        "result.plot()": "plot",
        "pfl.Result.compare": "compare",
        "pfl.Result.load(FOLDER)": "loadresult loadresults",
        "pfl.dataset_from_arrays(NAME, X, Y)": "fromnumpy frompandas",
        "pfl.load_dataset('table:FILE.csv')": "fromcsv loadcsv readcsv",
        "pfl.make_partition('iid', dataset, 10, 0, test_fraction=0.2)": "split traintestsplit",
    },
    "Algorithm": {SIMULATE: "fit run simulate train"},
    "Dataset": {
        "dataset.train_x": "[] data features images inputs train trainimages x xtrain",
        "dataset.train_y": "targets y ytrain",
        "dataset.test_x": "test xtest",
    },
    "Federation": {
        SIMULATE: "fit run simulate train",
        "federation.data": "[] client clients dataset",
        "federation.network": "model net",
    },
    "Partition": {"partition.client('train', 0)": "[] clients indices"},
    "Result": {
        "result.summary()['accuracy']": "[] finalaccuracy mean metrics score",
        "result.accuracy()": "acc accuracies testacc testaccuracy",
        "result.curve()": "curves history",
        "result.scores": "loss losses testloss",
        "result.headline('best')": "best bestaccuracy",
        "result.worst_decile()": "worst worstaccuracy worstclients",
        "result.predict(0, x, outputs=True)": "predictproba",
        "result.to_pandas()": "dataframe df frame todataframe todf",
        "result.to_pandas().to_csv(FILE)": "tocsv",
        "result.model(client=0)": "clientmodels models params weights",
    },
    "Simulation": {"simulation.run(rounds=20)": "fit history result results simulate train"},
}


def hint(of: str, name: str, known: Iterable[str], ours: Iterable[str] = ()) -> str:
    """Return the end of a sentence: what to write instead of a guessed name.

    Args:
      of: a key of `INSTEAD`.
      name: the guess.
      known: names of attributes, of which the nearest is named where nothing else is known.
      ours: what to write, where that is known.
    """
    table, word = INSTEAD[of], normalized(name)
    ours = [*ours] or [text for text, guesses in table.items() if word in guesses.split()]
    if ours:
        return f": write {' or '.join(ours)}."
    near = suggestions(name, [one for one in known if not one.startswith("_")])
    return f": did you mean {' or '.join(near)}?" if near else "."


def answer_guesses(cls: type) -> None:
    """Let instances of a class in `INSTEAD` say what to write instead of an unknown attribute."""

    def __getattr__(self: Any, name: str) -> Any:
        if hasattr(type(self), name):  # a property that failed: its own error
            return object.__getattribute__(self, name)
        what = f"{type(self).__name__!r} object has no attribute {name!r}"
        end = "" if name.startswith("_") else hint(cls.__name__, name, dir(self))
        raise AttributeError(what + end, name=name)  # without `obj`, or Python adds its own guess

    def __getitem__(self: Any, key: object) -> Any:
        end = hint(cls.__name__, "[]", ())
        raise TypeError(f"{type(self).__name__!r} object has no index [{key!r:.50}]{end}")

    for name in ("__iter__", "__contains__"):  # which Python makes of an index
        setattr(cls, name, None)
    setattr(cls, "__getattr__", __getattr__)  # noqa: B010
    setattr(cls, "__getitem__", __getitem__)  # noqa: B010
