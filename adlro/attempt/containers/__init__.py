"""Attempts of containers on one node, by the API of its container engine (Docker); interface as `attempts.Attempts`.

The attempt's folder is the truth about what was ordered, the engine about what runs. No supervisor of ours is between
them: the engine's own outlives the service. Decision 0017 says why, and what holds while the service is away.

    attempts     the service's side; a thread, the keeper, for each attempt that has not ended
      keeper     one attempt's life: image, container, its one start, logs, time limit, stop, end
      images     fetches an image once for all who wait for it
      spooler    takes the engine's log into the attempt's files, each byte once
      mounts     opens what is mounted as the job's user, below allowed prefixes (`opening`: the child that does)
      plan       the container as the engine's API has it: user, limits, GPUs, and what it may not
      engine     what is asked of the engine
    report       what `adlro doctor` says of the engine

Needs the extra `containers`.
"""
