"""Commands of those who run the harness: services, workers, audits, repairs."""
