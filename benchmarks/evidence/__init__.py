# SPDX-License-Identifier: Apache-2.0
"""What Tidegate saves, on which job and which network, and where it loses: measured cell by cell.

    make evidence                  all that is missing: hours, but it may be stopped at any time
    make evidence ARGS=--quick     about ten minutes
    .venv/bin/python -m benchmarks.evidence --list

A cell (cell.py) is one measurement. The runner (runner.py) stores each one's result as
docs/evidence/cells/NAME.json, and tables.py writes all pages, plots and the tables of the README
from these files and from nothing else.
"""

# Modules of this package that offer cells() and, if they have something to show, report(results);
# in the order in which they run and appear.
MODULES = ("virtual", "claims", "sockets", "cost")
