"""Commands for operators: services, workers, audits, repairs."""
