"""These tests need torch, and run it on one thread: several crawl where other work shares the processor."""

from importlib.util import find_spec

if not all(map(find_spec, ("torch", "safetensors", "PIL"))):
    collect_ignore_glob = ["test_*.py"]
else:
    import torch

    torch.set_num_threads(1)
