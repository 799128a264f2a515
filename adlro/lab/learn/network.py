"""The Q network: a CNN over the GPU matrix, and two fully connected layers shared over all (job, GPU) pairs. torch.

Its parameters do not depend on the number of GPUs or jobs: weights that were trained with 16 GPUs also run with 64 or
1,024. Its output does not depend on the order of GPUs, nodes or jobs either: kernels are 1 x 1, and neighbours count by
pooling over a node's slots and over all nodes.

The network scores only the possible pairs (mostly few: `planes.layout.Planes`), so the mask needs no work here. The
first fully connected layer, over the features of job, GPU, pair and cluster together, is computed in parts, once for
each job, GPU and cluster, and summed for each pair: the same layer, at a fraction of its cost.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding as at  # rows of a table; the only form that is a single node in ONNX
from torch.nn.functional import linear

from adlro.decide.planes.table import BASE_CHOICE, CLUSTER_PLANES, GPU_PLANES, JOB_PLANES, PAIR_PLANES
from adlro.lab.learn.sizes import NetworkSettings


class PointConv2d(nn.Conv2d):
    """A convolution of kernel 1 x 1, computed as a matrix product: several times faster in torch.

    oneDNN prepares a convolution again for each number of clusters, which changes from step to step. Features are the
    last axis, so that no transposition is needed; the weights have a convolution's shape.
    """

    def forward(self, matrix: Tensor) -> Tensor:
        """(N, M, S, C) to (N, M, S, channels)."""
        return linear(matrix, self.weight.flatten(1), self.bias)


class PairNetwork(nn.Module):
    """Q of each pair and of holding: value of the state + advantage of the action.

    The last layer of the advantages begins at 0: an untrained network has no preferences.

    Args:
        settings: the network's sizes.
    """

    def __init__(self, settings: NetworkSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or NetworkSettings()
        channels, hidden, hidden2 = self.settings.channels, self.settings.hidden, self.settings.hidden2
        # No bias for padding: its planes are 0, and stay 0. The plane `present` acts as a bias for all else.
        if self.settings.convolutions:
            self.gpu_in = PointConv2d(len(GPU_PLANES), channels, kernel_size=1, bias=False)
            self.gpu_mix = PointConv2d(channels, channels, kernel_size=1)
            self.node_mix = PointConv2d(channels, channels, kernel_size=1, bias=False)
        self.job_in = nn.Linear(len(JOB_PLANES), channels, bias=False)
        pooled = 2 * channels * (2 if self.settings.convolutions else 1)
        self.context = nn.Linear(len(CLUSTER_PLANES) + pooled, hidden)
        # The first fully connected layer, as four parts: (pair, job, GPU, cluster) -> hidden.
        self.of_pair = nn.Linear(len(PAIR_PLANES), hidden)
        self.of_job = nn.Linear(channels, hidden, bias=False)
        self.of_gpu = nn.Linear(channels, hidden, bias=False)
        self.of_cluster = nn.Linear(hidden, hidden, bias=False)
        self.of_base = nn.Linear(hidden, hidden)
        # The second fully connected layer.
        self.second = nn.Linear(hidden, hidden2)
        self.advantage = nn.Linear(hidden2, 1)
        self.state = nn.Linear(hidden, hidden2)
        self.hold = nn.Linear(hidden2, 1)
        self.value = nn.Linear(hidden2, 1)
        for last in (self.advantage, self.hold):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(
        self,
        gpus: Tensor,
        jobs: Tensor,
        cluster: Tensor,
        pairs: Tensor,
        pair_cluster: Tensor,
        pair_job: Tensor,
        pair_place: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Q in units of each decision's `scale_s`; the arguments are `planes.layout.Planes`.

        Returns:
            (P,) of the pairs, (N,) of holding.
        """
        advantages, hold, value = self.parts(gpus, jobs, cluster, pairs, pair_cluster, pair_job, pair_place)
        return (advantages + at(pair_cluster, value)).squeeze(1), (hold + value).squeeze(1)

    def parts(
        self,
        gpus: Tensor,
        jobs: Tensor,
        cluster: Tensor,
        pairs: Tensor,
        pair_cluster: Tensor,
        pair_job: Tensor,
        pair_place: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(P, 1) advantages of the pairs, (N, 1) of holding, (N, 1) value of the state."""
        of_jobs = torch.relu(self.job_in(jobs))  # (N, W, C)
        pooled = [cluster, *_pooled(of_jobs, jobs[:, :, :1], dims=(1,))]
        if self.settings.convolutions:
            planes = gpus.permute(0, 2, 3, 1).contiguous()  # (N, M, S, planes)
            first = torch.relu(self.gpu_in(planes))  # (N, M, S, C)
            node = first.amax(dim=2, keepdim=True)  # (N, M, 1, C): the maximum of each node
            present = planes[..., :1]  # (N, M, S, 1)
            matrix = torch.relu(self.gpu_mix(first) + self.node_mix(node)) * present  # (N, M, S, C)
            pooled += _pooled(matrix, present, dims=(1, 2))
        context = torch.relu(self.context(torch.cat(pooled, dim=1)))  # (N, H)
        hidden = self.of_pair(pairs) + self.of_job(at(pair_job, of_jobs.flatten(0, 1)))  # (P, H)
        if self.settings.convolutions:
            hidden = hidden + self.of_gpu(at(pair_place, matrix.flatten(0, 2)))
        # An action's gain is relative to the base's choice: every pair, and hold, get that choice as input.
        chosen = torch.relu(hidden) * pairs[:, BASE_CHOICE : BASE_CHOICE + 1]
        base = self.of_base(torch.zeros_like(context).index_add(0, pair_cluster, chosen))  # (N, H)
        hidden = hidden + at(pair_cluster, self.of_cluster(context) + base)
        context = context + torch.relu(base)
        advantages = self.advantage(torch.relu(self.second(torch.relu(hidden))))
        state = torch.relu(self.state(context))
        return advantages, self.hold(state), self.value(state)


def _pooled(values: Tensor, there: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """(N, C) mean over the present ones, and maximum, of values from 0 that are 0 for padding."""
    return values.sum(dim=dims) / there.sum(dim=dims).clamp_min(1.0), values.amax(dim=dims)
