"""One attempt of a program on one node: started exactly once, supervised by a process of its own, told truly. Linux.

Three processes: the service (`attempts.Attempts`; it may die, and be upgraded), a small supervisor for each attempt
(`supervisor`; it outlives the service), the program. What they know of each other lies in the attempt's folder
(`journal`), on a local disk. Decision 0015 says why.

    attempts             the service's side: starts, stops, looks, waits, takes up after a restart
      records, drivers   what is to run and how it ended; the best that the machine has for limits (unit: systemd)
      users              the Unix users of a map, as which programs run
      removal            removes a forgotten attempt's folder, however deep
    containers           the same for containers, by the engine's API and without supervisors
    supervisor           the process; python -I -S adlro/attempt/__main__.py FOLDER
      given              the program's user, environment, secrets
      program            the child: waits at the gate, becomes the user, runs the program
      tree, cgroup       finds and ends all that came from it
      log_files          keeps logs below their limit; reads them by offset
    journal              the folder's records, its lock, and what they add up to
      linux              what Python's library lacks of the kernel

The supervisor and what stands below it use the standard library alone. This file imports nothing: it is part of the
supervisor's start.
"""
