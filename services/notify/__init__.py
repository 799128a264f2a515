"""notify: tells receivers of webhooks what happens in a suite.

A client of the services like any other: it watches ends of jobs, and looks at the GPUs, the policy and the drift every
few seconds. What it notes goes into an outbox on disk (`adlro.webhooks.outbox`), and from there to each receiver by
itself. Nothing waits for it: the services do not know that it exists.

    watching    ends of jobs, exactly; conditions by looking again and again
    conditions  what lasts, since when, and whether it was told (pure)
    deliveries  one loop for each webhook
    retrying    when to try again, and when to give up (pure)
    keeper      the outbox and the file of webhooks, in one place
"""
