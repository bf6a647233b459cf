"""Compare truing with other libraries and recent papers on the same features, logits, splits and metrics.

The modules of this package are named by what they hold: the detectors of truing, of pytorch-ood, of scikit-learn, of
other packages and of papers; the protocol; and the pages.
"""

from ..experiment import Experiment
from .measuring import PACKAGES, measure
from .page import sections

PAGES = ("docs/results/field.md", "docs/results/field-tables.md")
EXPERIMENT = Experiment("field", measure, sections, PAGES, PACKAGES)
