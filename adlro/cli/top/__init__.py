"""`adlro top`: the cluster and its jobs on one screen of the terminal.

`model` is what is known, made of the client's records; `head`, `gpu_cells`, `job_rows` and `explaining` say it in text,
without a terminal; `feeds` fill the model through `adlro.client`; `once` prints it; `screen` draws it with Textual, the
only part that imports it.
"""
