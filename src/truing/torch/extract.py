"""Features and logits of every image, by one forward hook on the head."""

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
    """Return what enters and what leaves the head for every image: features (n, d), logits (n, c), labels (n,).

    The model runs in eval mode without gradients and is left as found, also after an error. One that changes its
    own parameters in place as it runs is refused after that batch: no copy of them is kept.

    >>> outputs = extract(nn.Linear(4, 3), [torch.ones(2, 4)])
    >>> outputs
    Outputs(2 rows: features 4, logits 3)

    Parameters
    ----------
    loader
        Any iterable of batches: image tensors, (images, labels, …), or dicts with a key such as `image` or
        `pixel_values`. Labels are kept where they are whole numbers, one per image.
    head
        A module of the model or its dotted name; by default the `nn.Linear` whose output the model returns. Of a
        1×1 `nn.Conv2d`, input and output are averaged over the picture.
    device
        Where to run, by default where the model is. A model elsewhere is moved, and afterwards moved back.
    into
        A new folder for `features.npy`, `logits.npy` and `labels.npy`, written as they come and then mapped, for
        more rows than memory holds. It appears whole or not at all.
    """
    folder = check_into(into)
    with closing(Head(model, head)) as watched, restored(model, device) as check_unchanged:
        where = device_of(model, device)

        def one(batch: Batch) -> Arrays:
            with batch.naming_errors():
                _, features, logits = batch.inputs.call(watched.run)
                check_unchanged()
                return batch.columns(columns(features, logits))

        numbered = batches(model, loader, where, title=lambda: f"extract, {watched}", progress=progress)
        # Not inference_mode: what a model caches under it could never be trained with again.
        with torch.no_grad(), torch.autocast(where.type) if autocast else nullcontext(), closing(numbered) as each:
            return gather(map(one, each), folder)
