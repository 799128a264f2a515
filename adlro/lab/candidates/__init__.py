"""`adlro learn`: a candidate for the learned policy, from what a cluster has run, and a verdict on it.

`python -m adlro.lab.candidates --help`.

    command    options, files              reading    the past, from a suite or from a job list
    learning   one learning, from a past   past       what a cluster has run, as a list for the simulator
    making     the candidate               worlds     worlds like the past
    judging    the verdict                 drift      how far two pasts differ
    document   the JSON document, and text  following  when --follow learns again

A candidate changes nothing: `adlro policy promote` puts it into service, and `adlro policy rollback` takes it back.
"""
