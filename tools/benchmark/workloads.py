"""Synthetic federations of the benchmark: nothing has to be downloaded."""

from dataclasses import dataclass

import numpy as np

import fedjax_pfl as pfl


@dataclass(frozen=True)
class Workload:
    """One experiment, the same for every contestant: FedAvg's local SGD on random images.

    Attributes:
      model: "cnn" (4 layers), "cnn_bn" (the same with batch normalization), "mlp" or "softmax".
      shape: of one image, [h, w, c].
      num_clients: N.
      train, test: samples of each client.
      batch_size: B of the local SGD; one local epoch a round.
      eval_batch_size: samples scored at once.
      alpha: of a Dirichlet partition of the same total, or None for equal clients.
      validation: share of each client's training samples that are validation samples.
    """

    model: str = "cnn"
    shape: tuple[int, int, int] = (28, 28, 1)
    num_clients: int = 20
    train: int = 450
    test: int = 150
    batch_size: int = 10
    eval_batch_size: int = 150
    alpha: float | None = None
    validation: float = 0.0

    def dataset(self) -> pfl.Dataset:
        """Make random uint8 images of ten classes, the same for the same workload."""
        total = self.num_clients * (self.train + self.test)
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (total, *self.shape), dtype=np.uint8)
        labels = np.arange(total, dtype=np.int32) % 10
        return pfl.dataset_from_arrays("noise", images, labels, num_classes=10)

    def partition(self, dataset: pfl.Dataset) -> pfl.Partition:
        """Make equal consecutive parts, or a Dirichlet split of the same samples."""
        if self.alpha is not None:
            return pfl.make_partition(
                "dirichlet",
                dataset,
                self.num_clients,
                0,
                alpha=self.alpha,
                test_fraction=self.test / (self.train + self.test),
            )
        parts = np.arange(dataset.num_train).reshape(self.num_clients, -1)
        return pfl.Partition.from_lists(parts[:, : self.train], parts[:, self.train :])

    def network(self):
        """Return the model for `pfl.federate`."""
        if self.model == "cnn_bn":
            return pfl.models.networks.CNN(10, (32, 64), 5, 0, 512, norm="before_relu")
        if self.model == "mlp":
            return pfl.models.networks.MLP(10, (200,))
        return self.model

    def federation(self, **options) -> pfl.Federation:
        dataset = self.dataset()
        partition = self.partition(dataset)
        if self.validation:
            partition = partition.split_validation(self.validation, seed=0)
        return pfl.federate(
            dataset,
            partition,
            self.network(),
            learning_rate=0.01,
            batch_size=self.batch_size,
            eval_batch_size=self.eval_batch_size,
            **options,
        )

    def forward_flops(self) -> tuple[int, int]:
        """Return FLOPs of the products in one sample's forward pass: (first layer, all layers)."""
        height, width, channels = self.shape
        inputs = height * width * channels
        if self.model == "softmax":
            return 2 * inputs * 10, 2 * inputs * 10
        if self.model == "mlp":
            first = 2 * inputs * 200
            return first, first + 2 * 200 * 10
        pixels = (height - 4) * (width - 4)
        first = 2 * pixels * 25 * channels * 32
        height, width = (height - 4) // 2, (width - 4) // 2
        second = 2 * (height - 4) * (width - 4) * 25 * 32 * 64
        flat = ((height - 4) // 2) * ((width - 4) // 2) * 64
        return first, first + second + 2 * flat * 512 + 2 * 512 * 10

    def round_flops(self) -> int:
        """Return FLOPs of the products of one round of FedAvg, its evaluation included.

        The backward pass takes two products where the forward pass takes one, but for the first
        layer, whose input needs no gradient.
        """
        first, forward = self.forward_flops()
        step = 3 * forward - first
        return self.num_clients * (self.train * step + self.test * forward)
