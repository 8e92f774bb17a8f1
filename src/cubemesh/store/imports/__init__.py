"""Results of other programs as records: sweeps in CSV and logs of nccl-tests."""
