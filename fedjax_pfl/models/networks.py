"""Registered networks, one file per family."""

from fedjax_pfl.models.cnn import CNN
from fedjax_pfl.models.dla import DLA
from fedjax_pfl.models.mlp import MLP
from fedjax_pfl.models.model_registry import MODELS, make_model, options_of, register_model
from fedjax_pfl.models.recurrent import CharLSTM
from fedjax_pfl.models.resnet import ResNet, ResNet18
from fedjax_pfl.models.text import FastText, TextCNN
from fedjax_pfl.models.text_transformer import TextTransformer
from fedjax_pfl.models.vit import ViT

__all__ = [
    "CNN",
    "DLA",
    "MLP",
    "MODELS",
    "CharLSTM",
    "FastText",
    "ResNet",
    "ResNet18",
    "TextCNN",
    "TextTransformer",
    "ViT",
    "make_model",
    "options_of",
    "register_model",
]
