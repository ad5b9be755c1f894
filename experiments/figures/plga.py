"""PLGA (ICLR 2022 submission): accuracy of clients and of the server."""

from .accuracy import of_models
from .drawing import figure

figure(
    "plga/accuracy",
    "clients' mean accuracy and the server's on all test samples, by round (PLGA Fig. 2)",
    of_models,
    models="personalized,global",
    averages="clients,samples",
    by="model",
)
