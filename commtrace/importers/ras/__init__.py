"""Snapshots of NCCL RAS: how far each member of each communicator is."""
