"""The chaos run: real services, known content, faults by a seeded schedule, and readers that check every read."""
