"""What runs on the executors of Spark, and what they need for it."""
