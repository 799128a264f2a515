"""web: the live page. Reads the other services through `adlro.client`, and serves browsers; never on the decision path.

feeds      streams of the client            -> picture
picture    what the services last said         (with jobs_table, its columns of jobs)
views      the picture, cut for one viewer, by topic
hub        topics, revisions, deltas, acknowledgements; no I/O
live       one WebSocket: hub <-> browser
api        questions that are not live, under the user's own token (with decisions, gantt); actions: what he changes
logins     who a token belongs to, as ingest says
app        the routes, between the protection of every request and the sessions
"""
