"""Arrow as the engine of the stages: no JVM, in this process."""
