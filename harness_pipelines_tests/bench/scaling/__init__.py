"""Many tables in one process: what they cost, busy and idle."""
