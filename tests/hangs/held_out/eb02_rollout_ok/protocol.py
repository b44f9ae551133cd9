import torch
import torch.distributed as dist

ROWS, WIDTH = 8, 3
STOP, GO = 0.0, 1.0


def send_rollout(rows):
    message = torch.zeros(ROWS + 1, WIDTH)
    message[0, 0] = len(rows)
    if rows:
        message[1:1 + len(rows)] = torch.tensor(rows)
    dist.send(message, dst=0)


def receive_rollout():
    message = torch.zeros(ROWS + 1, WIDTH)
    src = dist.recv(message)
    return src, message[1:1 + int(message[0, 0])]


def send_policy(flat, dst, order):
    dist.send(torch.cat([torch.tensor([order]), flat]), dst=dst)


def receive_policy(size):
    message = torch.zeros(size + 1)
    dist.recv(message, src=0)
    return message[0].item(), message[1:]
