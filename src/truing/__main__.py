"""`python -m truing` runs the command line."""

import sys

from truing_command import main

sys.exit(main())
