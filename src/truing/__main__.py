"""Run the command line with `python -m truing`."""

import sys

from truing_command import main

sys.exit(main())
