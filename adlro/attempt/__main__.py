"""The supervisor's start: python -I -S adlro/attempt/__main__.py FOLDER. It runs without any installed package."""

import os
import sys

if __name__ == "__main__":
    # Last on the path, and only while our own modules are imported: nothing beside adlro may come in the place of the
    # standard library. All imports happen now, since an upgrade may replace the files while the program runs.
    _root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.append(_root)
    from adlro.attempt.supervisor import main

    sys.path.remove(_root)
    sys.exit(main(sys.argv[1]))
