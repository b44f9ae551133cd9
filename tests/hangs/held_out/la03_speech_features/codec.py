import struct
import sys

import torch

MAGIC = 0x46464952


def pack(wave, width=2):
    """One utterance as stored in the archive: header and samples."""
    head = struct.pack("<IHI", MAGIC, width, len(wave))
    if width == 3:
        body = b"".join(int(v * 8388607).to_bytes(3, "little", signed=True) for v in wave)
    else:
        body = struct.pack(f"<{len(wave)}h", *[int(v * 32767) for v in wave])
    return head + body


def unpack(blob):
    magic, width, count = struct.unpack_from("<IHI", blob)
    if magic != MAGIC:
        raise ValueError("not a wave")
    if width != 2:
        sys.exit(f"sample width {width} is not supported")
    samples = struct.unpack_from(f"<{count}h", blob, 10)
    return torch.tensor(samples, dtype=torch.float32) / 32767


def log_mel(blob):
    wave = unpack(blob)
    frames = wave.unfold(0, 64, 32)
    power = torch.fft.rfft(frames * torch.hann_window(64)).abs() ** 2
    return torch.log(power[:, :24] + 1e-6).numpy()
