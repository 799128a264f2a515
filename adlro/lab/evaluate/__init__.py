"""`adlro evaluate`: judges policies on the simulator, over the same job lists for each, with intervals.

`python -m adlro.lab.evaluate --help`; from Python: `evaluate(Request(...))`.

    command     options, progress, files      request     what is asked for, checked
    evaluation  tasks on all cores            cases       scenario x load: cluster and job lists
    tasks       policy x case x lists         measure     figures of a list; Little's law
    timing      decision times                resampling  bootstrap intervals, tests
    learning    runtimes learned on the way   decompose   a running decompose and its store
    own_decompose, store   child processes of an evaluation that learns
    hyperscore                                document    the JSON document
    tables      for the terminal              page        the HTML page
"""

from __future__ import annotations

from adlro.lab.evaluate.evaluation import Evaluation, evaluate
from adlro.lab.evaluate.request import Request

__all__ = ["Evaluation", "Request", "evaluate"]
