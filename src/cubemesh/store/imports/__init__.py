"""Results of other programs as records: sweeps in JSON, logs of nccl-tests, and training logs."""
