"""FedAvg as a competent user would write it in PyTorch: one client after the other.

Needs the optional extra "benchmark".
"""
# Lint runs without that extra.
# pyright: reportMissingImports=false

import copy
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from .workloads import Workload


def network(workload: Workload) -> nn.Module:
    """Return the workload's model with the same number of parameters."""
    height, width, channels = workload.shape
    inputs = height * width * channels
    if workload.model == "softmax":
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 10))
    if workload.model == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 200), nn.ReLU(), nn.Linear(200, 10))
    side = ((height - 4) // 2 - 4) // 2 * (((width - 4) // 2 - 4) // 2)

    def block(before: int, after: int) -> list[nn.Module]:
        norm = [nn.BatchNorm2d(after)] if workload.model == "cnn_bn" else []
        return [nn.Conv2d(before, after, 5), *norm, nn.ReLU(inplace=True), nn.MaxPool2d(2)]

    return nn.Sequential(
        *block(channels, 32),
        *block(32, 64),
        nn.Flatten(),
        nn.Linear(side * 64, 512),
        nn.ReLU(inplace=True),
        nn.Linear(512, 10),
    )


class TorchLoop:
    """The sequential loop: every client trains a copy of the model, the server averages."""

    def __init__(self, workload: Workload, device: str = "cpu"):
        self.name = "PyTorch loop"
        self.workload, self.device = workload, torch.device(device)
        dataset = workload.dataset()
        partition = workload.partition(dataset)
        samples, labels = dataset.pool()
        images = torch.from_numpy(np.moveaxis(samples, -1, 1).copy()).float().div_(127.5).sub_(1)
        self.images = images.to(self.device)
        self.labels = torch.from_numpy(labels.astype(np.int64)).to(self.device)
        clients = range(partition.num_clients)
        self.train, self.test = (
            [torch.from_numpy(partition.client(s, i).astype(np.int64)).to(self.device)
             for i in clients]
            for s in ("train", "test")
        )  # fmt: skip
        torch.manual_seed(0)
        self.server = network(workload).to(self.device)

    def prepare(self) -> float:
        began = time.perf_counter()
        self._round()
        return time.perf_counter() - began

    def time_rounds(self, rounds: int) -> float:
        """Return the median seconds per round over `rounds` of them."""
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            self._round()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return float(np.median(times))

    def _round(self) -> float:
        total = sum(len(part) for part in self.train)
        average = {name: torch.zeros_like(v) for name, v in self.server.state_dict().items()}
        for part in self.train:
            client = self._train(part)
            weight = len(part) / total
            for name, value in client.state_dict().items():
                if value.is_floating_point():
                    average[name].add_(value, alpha=weight)
        self.server.load_state_dict(average)
        return self._evaluate()

    def _train(self, part: torch.Tensor) -> nn.Module:
        client = copy.deepcopy(self.server).train()
        optimizer = torch.optim.SGD(client.parameters(), lr=0.01)
        order = part[torch.randperm(len(part), device=self.device)]
        for chosen in order.split(self.workload.batch_size):
            optimizer.zero_grad()
            loss = functional.cross_entropy(client(self.images[chosen]), self.labels[chosen])
            loss.backward()
            optimizer.step()
        return client

    @torch.no_grad()
    def _evaluate(self) -> float:
        self.server.eval()
        correct = 0
        for part in self.test:
            for chosen in part.split(self.workload.eval_batch_size):
                predicted = self.server(self.images[chosen]).argmax(dim=1)
                correct += int((predicted == self.labels[chosen]).sum())
        return correct / sum(len(part) for part in self.test)
