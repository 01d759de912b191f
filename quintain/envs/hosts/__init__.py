"""Where lanes run: in this process or in worker processes, with fault handling."""
