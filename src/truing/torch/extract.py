"""Extract the features and logits of every row with a forward hook on the head."""

from collections.abc import Iterable
from contextlib import closing, nullcontext
from typing import Any

import torch
from torch import nn

from ..data.drafts import AnyPath
from ..data.npz import Arrays
from ..outputs import Outputs
from ._batches import Batch, batches
from ._gather import check_into, gather
from ._head import Head, columns
from ._restored import device_of, restored


def extract(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    head: nn.Module | str | None = None,
    device: torch.device | str | None = None,
    autocast: bool = False,
    into: AnyPath | None = None,
    progress: bool = True,
) -> Outputs:
    """Return the input and output of the head for every row: features (n, d), logits (n, c), and labels (n,) if any.

    The model runs in eval mode without gradients and is restored afterwards, also after an error. If the model
    changes its own parameters in place, an error is raised after that batch.

    >>> outputs = extract(nn.Linear(4, 3), [torch.ones(2, 4)])
    >>> outputs
    Outputs(2 rows: features 4, logits 3)

    Parameters
    ----------
    loader
        Any iterable of batches: tensors of images, (images, labels, …), or dicts with a key such as `pixel_values`.
        A dict with `input_ids` or another input of a Hugging Face model is passed to the model by name, without its
        labels. Labels are kept if there is one integer per row.
    head
        A module of the model or its dotted name; by default the `nn.Linear` whose output the model returns. The input
        and output of a 1×1 `nn.Conv2d` are averaged over the picture.
    device
        The device to run on, by default the model's. The model is moved back afterwards.
    autocast
        Whether to run in half precision where torch allows it. The arrays are float32.
    into
        A new folder for `features.npy`, `logits.npy` and `labels.npy`, written batch by batch and then mapped into
        memory. If the extraction fails, no folder remains.
    progress
        Whether to show a line of progress on a terminal.
    """
    folder = check_into(into)
    with closing(Head(model, head)) as watched, restored(model, device) as check_unchanged:
        where = device_of(model, device)

        def columns_of(batch: Batch) -> Arrays:
            with batch.naming_errors():
                _, features, logits = batch.inputs.call(watched.run)
                check_unchanged()
                return batch.columns(columns(features, logits))

        numbered = batches(model, loader, where, title=lambda: f"extract, {watched}", progress=progress)
        # Not inference_mode: tensors that the model caches there could not be used in later training.
        with torch.no_grad(), torch.autocast(where.type) if autocast else nullcontext(), closing(numbered) as each:
            return gather(map(columns_of, each), folder)
