"""The decompose service: records as discrete variables, the GPU matrix, runtimes learned from finished jobs."""
