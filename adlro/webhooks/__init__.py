"""Messages about what happens in a suite, for receivers of HTTP: who gets which, how they are signed, kept and sent.

    file        the operator's file of webhooks
    events      what can happen, and the documents that tell it
    signature   the headers by which a receiver knows a message of ours; `verify` for receivers in Python
    outbox      the messages that are not delivered yet, in a file that survives every process
    posting     one message over HTTP, within limits

`adlro.services.notify` is the process that uses them. Standard library only, beside plain records.
"""

from adlro.webhooks.signature import BadSignature, verify

__all__ = ["BadSignature", "verify"]
