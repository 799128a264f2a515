"""An agent of one's own on ADLRO's Gymnasium environment: PPO in the manner of CleanRL, one file, no library but torch.

    pip install '.[train]'
    python examples/own_agent.py [--steps 20000] [--envs 8] [--seed 1]

It sees what the policy that ships sees (adlro/lab/learn/env.py), chooses among the actions that the mask
allows, and prints the mean return of the episodes that ended. It is a beginning: `adlro train` makes better policies.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from adlro.lab.learn.env import PlacementVectorEnv, RewardWeights, draw_lists

STEPS, EPOCHS, PARTS = 64, 4, 4
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2
REWARD_SCALE = 0.01


class Agent(nn.Module):
    """The flattened planes, two layers, a value and a logit for each action."""

    def __init__(self, planes: int, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(planes, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
        self.logits, self.value = nn.Linear(128, actions), nn.Linear(128, 1)

    def forward(self, seen: torch.Tensor, mask: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        """(N, planes) and (N, actions) to a distribution over the allowed actions, and (N,) values."""
        body = self.body(seen)
        logits = self.logits(body).masked_fill(~mask, -1e9)
        return Categorical(logits=logits), self.value(body).squeeze(-1)


def flat(observation: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """(N, planes) of an observation, and its mask."""
    parts = [observation[name].reshape(len(observation["mask"]), -1) for name in ("gpus", "jobs", "pairs", "cluster")]
    return torch.from_numpy(np.concatenate(parts, axis=1)), torch.from_numpy(observation["mask"].astype(bool))


def train(steps: int, envs: int, seed: int) -> list[float]:
    """Trains for so many steps of each environment together; the mean returns of the episodes of each rollout."""
    torch.manual_seed(seed)
    clusters = PlacementVectorEnv(envs, jobs=draw_lists(seed, 64, jobs=32), window=8, weights=RewardWeights(0.1))
    seen, mask = flat(clusters.reset(seed=seed)[0])
    agent = Agent(seen.shape[1], mask.shape[1])
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-4, eps=1e-5)
    returns, running = [], np.zeros(envs)
    for _ in range(max(1, steps // (STEPS * envs))):
        kept: list[tuple[torch.Tensor, ...]] = []
        ended: list[float] = []
        for _ in range(STEPS):
            with torch.no_grad():
                policy, value = agent(seen, mask)
                action = policy.sample()
            observation, reward, terminated, truncated, info = clusters.step(action.numpy())
            assert not info["masked_actions"].any()
            done = terminated | truncated
            running += reward
            ended += running[done].tolist()
            running[done] = 0.0
            scaled = torch.from_numpy(REWARD_SCALE * reward).float()
            kept.append((seen, mask, action, policy.log_prob(action), value, scaled, torch.from_numpy(done).float()))
            seen, mask = flat(observation)
        update(agent, optimizer, kept, seen, mask)
        if ended:
            returns.append(float(np.mean(ended)))
            print(f"{len(ended)} episodes, mean return {returns[-1]:.1f}")
    return returns


def update(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    kept: list[tuple[torch.Tensor, ...]],
    last_seen: torch.Tensor,
    last_mask: torch.Tensor,
) -> None:
    """PPO's clipped objective over one rollout, with generalized advantage estimates."""
    seen, mask, action, log_prob, value, reward, done = (torch.stack(column) for column in zip(*kept, strict=True))
    with torch.no_grad():
        next_value = agent(last_seen, last_mask)[1]
        advantage, sum_ = torch.zeros_like(reward), torch.zeros_like(next_value)
        for t in reversed(range(len(reward))):
            delta = reward[t] + GAMMA * next_value * (1 - done[t]) - value[t]
            advantage[t] = sum_ = delta + GAMMA * LAMBDA * (1 - done[t]) * sum_
            next_value = value[t]
    goal = (advantage + value).flatten()
    columns = [x.flatten(0, 1) for x in (seen, mask, action, log_prob, advantage)]
    for _ in range(EPOCHS):
        for part in torch.randperm(len(goal)).chunk(PARTS):
            s, m, a, before, gain = (column[part] for column in columns)
            policy, v = agent(s, m)
            ratio = (policy.log_prob(a) - before).exp()
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            loss = -torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            loss = loss + 0.5 * (v - goal[part]).square().mean() - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    train(asked.steps, asked.envs, asked.seed)
