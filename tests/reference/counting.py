"""Work that is counted, in calls of functions: the same on every machine."""

import sys


def calls(function, *arguments, **options):
    """Count the functions that are called, Python's and those of C, while one is."""
    n = 0

    def count(frame, event, argument):
        nonlocal n
        n += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function(*arguments, **options)
    finally:
        sys.setprofile(before)
    return n
