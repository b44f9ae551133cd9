import json
import logging
from pathlib import Path

import torch
import torch.distributed as dist

from env import Glider
from policy import Policy, publish

log = logging.getLogger("rl")
LEARNER = 0


def rollout(env, policy, horizon):
    obs = env.reset()
    steps = []
    for _ in range(horizon):
        with torch.no_grad():
            action = policy(torch.tensor(obs)).sample()
        following, reward, done = env.step(int(action))
        steps.append([*obs, float(action), reward])
        obs = following
        if done:
            break
    return torch.tensor(steps)


def returns_of(rewards, gamma=0.97):
    out, total = [], 0.0
    for reward in reversed(rewards.tolist()):
        total = reward + gamma * total
        out.append(total)
    return torch.tensor(out[::-1])


def run_actor(config):
    rank = dist.get_rank()
    env = Glider(config["seeds"][str(rank)])
    policy = Policy()
    for iteration in range(config["iterations"]):
        publish(policy)
        episode = rollout(env, policy, config["horizon"])
        if len(episode) < config["min_steps"]:
            log.debug("iteration %d: crashed after %d steps", iteration, len(episode))
            continue
        dist.send(torch.tensor([len(episode)]), dst=LEARNER)
        dist.send(episode, dst=LEARNER)


def collect():
    for actor in range(1, dist.get_world_size()):
        length = torch.zeros(1, dtype=torch.long)
        dist.recv(length, src=actor)
        episode = torch.empty(int(length), 4)
        dist.recv(episode, src=actor)
        yield episode


def run_learner(config):
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for iteration in range(config["iterations"]):
        publish(policy)
        losses, score = [], 0.0
        for episode in collect():
            gains = returns_of(episode[:, 3])
            logp = policy(episode[:, :2]).log_prob(episode[:, 2])
            losses.append(-(logp * (gains - gains.mean())).mean())
            score += float(episode[:, 3].sum())
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()
        optimizer.step()
        log.info("iteration %d: return %.1f", iteration, score / len(losses))


def main():
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    config = json.loads((Path(__file__).parent / "actors.json").read_text())
    if dist.get_rank() == LEARNER:
        run_learner(config)
    else:
        run_actor(config)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
