"""Compare truing with other libraries and recent papers, and fill docs/results/field.md and field-tables.md."""

from . import EXPERIMENT

EXPERIMENT.main()
