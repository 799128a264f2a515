"""Python functions as jobs: how a call travels to the cluster, and its result back. No gRPC.

shipping   a function and its arguments as files in a folder of the caller's, and the job that runs them
runner     what that job runs: a copy of this file, with the standard library and cloudpickle
outcomes   what came back: the result, the exception, or why there is neither
futures    what the caller holds meanwhile
"""
