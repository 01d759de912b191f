"""Who is measured: each module trains one workload with one library.

A peer module has REQUIREMENTS, what pip installs into its own environment (empty: it runs in ours), and PACKAGES, whose
versions are reported. Its `train(workload, seed, tick)` trains until `tick(env_steps)`, called once per iteration,
returns True. Libraries are imported inside `train`, so that the module can be read without them.
"""
