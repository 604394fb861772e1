"""What flows may ask of the outside: protocols and plain values, nothing else."""
