"""`python -m gateway_adapter.cli` is the command `session-coordinator`."""

import sys

from gateway_adapter.cli import main

sys.exit(main())
