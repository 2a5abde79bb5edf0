"""`python -m perdure.cli`, for where the script is not installed."""

from __future__ import annotations

import sys

from perdure.cli.main import main

sys.exit(main())
