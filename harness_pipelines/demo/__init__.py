"""What `harness demo` runs: real records on their way through all tiers, with proof."""
