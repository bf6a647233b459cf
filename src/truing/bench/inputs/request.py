"""The options of `truing bench extract`: images, labels, resizing, and ODIN.

Defaults are the paper's settings for the network and the data set.
"""

import argparse
from dataclasses import replace

import numpy as np

from ..._check import as_count, as_number
from .datasets.images import Images
from .datasets.noise import NOISES, as_seed
from .datasets.table import DATASETS, load
from .networks.table import Network, Odin, labels_of

FEATURES = ("clean", "perturbed")
NOISE_ROWS = 2000
PREPARED_SIZE = 32
_COLDEST = 1e-100  # The lowest temperature of any score.


def check_numbers(args: argparse.Namespace) -> None:
    """Reject counts below one and invalid seeds, with the names of their options."""
    for name in ("batch", "classes", "rows"):
        if vars(args)[name] is not None:
            as_count(vars(args)[name], f"--{name}")
    if args.seed is not None:
        as_seed(args.seed, "--seed")


def images_of(args: argparse.Namespace, network: Network, classes: int) -> Images:
    """Return the chosen rows of the set, with labels only if they are the network's classes."""
    return _with_valid_labels(_chosen(args, network), args, network, classes)


def noise_seed(args: argparse.Namespace) -> int | None:
    """Return the seed of a noise set."""
    return int(args.seed or 0) if args.data in NOISES else None


def picture_fit(args: argparse.Namespace, network: Network) -> str:
    """Return the name of the function in `FITS` that resizes the images to the network's size."""
    if args.fit is not None:
        return str(args.fit)
    prepared = args.data in DATASETS and DATASETS[args.data].as_is and network.preprocessing.size == PREPARED_SIZE
    return "as-is" if prepared else network.preprocessing.fit


def odin_of(args: argparse.Namespace, network: Network) -> Odin | None:
    """Return ODIN's parameters, or None without ODIN."""
    given = {name: vars(args)[name] for name in ("temperature", "epsilon") if vars(args)[name] is not None}
    if args.odin is None:
        if given:
            raise ValueError(f"--{next(iter(given))} is a parameter of ODIN: add --odin {' or '.join(FEATURES)}")
        return None
    odin = replace(network.odin, features=args.odin, **given)
    as_number(odin.temperature, "--temperature", at_least=_COLDEST)
    as_number(odin.epsilon, "--epsilon", at_least=0)
    if odin.features == "perturbed" and not odin.epsilon:
        raise ValueError("--odin perturbed needs an --epsilon above 0, got 0: use --odin clean")
    return odin


def _chosen(args: argparse.Namespace, network: Network) -> Images:
    seed = noise_seed(args)
    if seed is not None:
        rng = np.random.default_rng(seed)
        return NOISES[args.data](args.rows or NOISE_ROWS, network.preprocessing.size, rng)
    images = load(args.data, args.root)
    if args.rows is None or args.rows >= len(images):
        return images
    if args.seed is None:
        return images.take(np.arange(args.rows))
    return images.take(np.sort(np.random.default_rng(args.seed).choice(len(images), args.rows, replace=False)))


def _with_valid_labels(images: Images, args: argparse.Namespace, network: Network, classes: int) -> Images:
    # Labels of a set with other classes mean nothing to the network.
    own = args.data not in DATASETS and args.data not in NOISES
    if args.labels and (not own or images.labels is None):
        raise ValueError(f"--labels needs an .npz with labels, got {args.data}")
    if not own:
        space = DATASETS[args.data].labels if args.data in DATASETS else None
        return images if space is not None and space == labels_of(network, classes) else Images(images.pictures)
    if not args.labels or images.labels is None:
        return Images(images.pictures)
    foreign = images.labels[(images.labels < 0) | (images.labels >= classes)]
    if len(foreign):
        raise ValueError(f"{args.data} must contain labels from 0 to {classes - 1} for --labels, got {foreign[0]}")
    return images
