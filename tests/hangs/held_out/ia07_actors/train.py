import torch
import torch.distributed as dist

from policy import PolicyBoard, make_policy

ROUNDS = 12
STEPS = 20


class Actor:
    def __init__(self, board):
        self.board = board
        self.policy = make_policy()
        self.gen = torch.Generator().manual_seed(dist.get_rank())

    @torch.no_grad()
    def rollout(self):
        obs = torch.randn(STEPS, 4, generator=self.gen)
        probs = self.policy(obs).softmax(-1)
        action = torch.multinomial(probs, 1, generator=self.gen)
        good = (obs.sum(1, keepdim=True) > 0).long() == action
        reward = good.float() + torch.randn(STEPS, 1, generator=self.gen) * 0.5
        return torch.cat([obs, action.float(), reward], 1)

    def run(self):
        for version in range(ROUNDS):
            self.board.load(self.policy, version)
            dist.send(self.rollout(), 0)


class Learner:
    def __init__(self, board):
        self.board = board
        self.policy = make_policy()
        self.opt = torch.optim.Adam(self.policy.parameters(), lr=3e-2)
        self.actors = range(1, dist.get_world_size())

    def collect(self):
        parts = []
        for actor in self.actors:
            part = torch.empty(STEPS, 6)
            dist.recv(part, actor)
            parts.append(part)
        return torch.cat(parts)

    def update(self, data):
        obs, action, reward = data[:, :4], data[:, 4].long(), data[:, 5]
        logp = self.policy(obs).log_softmax(-1).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = -(logp * (reward - reward.mean())).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return reward.mean().item()

    def run(self):
        self.board.publish(self.policy, 0)
        for version in range(1, ROUNDS):
            data = self.collect()
            score = self.update(data)
            print("version", version, "score", round(score, 3), flush=True)
            self.board.publish_if_better(self.policy, version, score)
        self.collect()


def main():
    dist.init_process_group("gloo")
    board = PolicyBoard()
    role = Learner(board) if dist.get_rank() == 0 else Actor(board)
    role.run()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
