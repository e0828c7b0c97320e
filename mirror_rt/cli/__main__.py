"""Run the command line as `python -m mirror_rt.cli`, for when `mirror-rt` is not on the path."""

import sys

from mirror_rt.cli.main import main

sys.exit(main())
