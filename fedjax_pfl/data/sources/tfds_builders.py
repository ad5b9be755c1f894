"""TFDS builders of MNIST, Fashion-MNIST, EMNIST and CIFAR that need no TensorFlow.

TFDS's own builders unpack and parse with TensorFlow. These subclasses take name, version, features,
URLs and checksums from them and replace those two steps. They write the same records in the same
order as TFDS's own builders, and plain `tfds.data_source` reads them. Importing this module imports
tensorflow_datasets: import it inside functions only.
"""

from pathlib import Path

import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.image_classification import cifar, mnist

from fedjax_pfl.data.sources.cifar import read_cifar_archive
from fedjax_pfl.data.sources.idx import MNIST_STEMS, read_emnist_zip, read_idx


class _IdxFiles(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Downloads the four gzip files without unpacking them, and parses them with NumPy."""

    URL: str

    def urls(self) -> list[str]:
        return [f"{self.URL.rstrip('/')}/{stem}.gz" for stem in MNIST_STEMS]

    def _split_generators(self, dl_manager):
        files = dl_manager.download(self.urls())
        paths = [Path(path) for path in files]  # pyright: ignore[reportGeneralTypeIssues] - a list
        arrays = [read_idx(path, ndim) for path, ndim in zip(paths, (3, 1, 3, 1), strict=True)]
        return {"train": _examples(*arrays[:2]), "test": _examples(*arrays[2:])}

    def _generate_examples(self, *_):
        raise AssertionError("the split generators make the examples")


def _examples(images, labels):
    # Pillow images, as TFDS encodes arrays with TensorFlow. Keys fix the order of the records.
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        yield i, {"image": Image.fromarray(image), "label": int(label)}


class Mnist(_IdxFiles, mnist.MNIST, skip_registration=True):
    name = "mnist"


class FashionMnist(_IdxFiles, mnist.FashionMNIST, skip_registration=True):
    name = "fashion_mnist"


class Emnist(_IdxFiles, mnist.EMNIST, skip_registration=True):
    name = "emnist"

    def urls(self) -> list[str]:
        return [self.URL]

    def _split_generators(self, dl_manager):
        (path,) = dl_manager.download(self.urls())
        config = self.builder_config
        assert config is not None  # TFDS picks one where none is named
        train_x, train_y, test_x, test_y = read_emnist_zip(Path(path), config.name)
        # As TFDS's own builder: of `letters` it takes fewer images than the files hold.
        train, test = config.train_examples, config.test_examples
        return {
            "train": _examples(train_x[:train], train_y[:train]),
            "test": _examples(test_x[:test], test_y[:test]),
        }


class _CifarArchive(cifar.Cifar10, skip_registration=True):
    """Downloads the archive without unpacking it, and reads it in memory."""

    def urls(self) -> list[str]:
        return [self._cifar_info.url]

    def _split_generators(self, dl_manager):
        (path,) = dl_manager.download(self.urls())
        parts = read_cifar_archive(self.name, Path(path))
        features = self.info.features
        assert isinstance(features, tfds.features.FeaturesDict)  # of CIFAR they are
        for key, names in zip(self._cifar_info.label_keys, parts.names, strict=True):
            if names:
                label = features[key]
                assert isinstance(label, tfds.features.ClassLabel)
                label.names = list(names)
        return {
            "train": self._generate_examples("train_", (parts.train_x, parts.train_labels)),
            "test": self._generate_examples("test_", (parts.test_x, parts.test_labels)),
        }

    def _generate_examples(self, split_prefix, filepaths):
        keys = self._cifar_info.label_keys
        for i, (image, labels) in enumerate(zip(*filepaths, strict=True)):
            record = {key: int(label) for key, label in zip(keys, labels, strict=True)}
            yield i, record | {"id": f"{split_prefix}{i:05d}", "image": Image.fromarray(image)}


class Cifar10(_CifarArchive, cifar.Cifar10, skip_registration=True):
    name = "cifar10"


class Cifar100(_CifarArchive, cifar.Cifar100, skip_registration=True):
    name = "cifar100"


BUILDERS: dict[str, type[_IdxFiles | _CifarArchive]] = {
    builder.name: builder for builder in (Mnist, FashionMnist, Emnist, Cifar10, Cifar100)
}
