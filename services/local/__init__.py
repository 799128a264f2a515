"""local: this machine as a cluster. It runs jobs' programs on this machine's GPUs, or on pretended ones.

driver       starts, stops and finds attempts again (adlro.attempt), and reports how they end
found        what earlier processes of the service have left
strays       attempts that run, and that the cluster's record has given up
given        what programs are given: user, variables, ranks, limits, secrets
orders       has the programs of attempts written down, and after kills those that are missing
programs     those of one attempt together: begun at once, ended with the first that fails
gates, ports let them begin at once; where they meet
runners      what runs processes and containers
logs         the output of attempts
cleaning     deletes old attempts
known, notes what each attempt's folder belongs to
gpus         which GPU has which id, kept over reboots; the cluster that is described
conditions   why GPUs are out now
users        as which Unix user a program runs
ends         from exit statuses to events
"""
