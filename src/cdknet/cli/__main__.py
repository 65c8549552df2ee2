"""python -m cdknet.cli"""

import sys

from cdknet.cli import main

sys.exit(main())
