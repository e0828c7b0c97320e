"""`python -m mirror_rt.cli`, where the command is not on the path."""

import sys

from mirror_rt.cli.main import main

sys.exit(main())
