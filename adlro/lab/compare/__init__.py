"""`adlro compare`: replays the finished jobs of a running suite under two or more policies, paired, with intervals.

`python -m adlro.lab.compare --help`.

    command    options, files             reading    from the suite, over adlro.client
    comparing  the comparison             history    its jobs as a list for the simulator
    knowledge  what policies know         replaying  one policy in the simulator
    resampling intervals of one history
    document   the JSON document          tables     for the terminal
"""
