"""torch's store for groups without peers; its import registers the backend `fake`."""

from torch.testing._internal.distributed.fake_pg import FakeStore

__all__ = ["FakeStore"]
