"""Results of simulations: metrics by round, tables, figures and files."""

from fedjax_pfl.results.concept_changes import Change
from fedjax_pfl.results.harm import Gains
from fedjax_pfl.results.model_files import load_models, model_axes, save_models
from fedjax_pfl.results.result import Result
from fedjax_pfl.results.significance import Friedman, Ranking

__all__ = [
    "Change",
    "Friedman",
    "Gains",
    "Ranking",
    "Result",
    "load_models",
    "model_axes",
    "save_models",
]
