"""`python -m truing` is the command `truing`."""

import sys

from truing_command import main

sys.exit(main())
