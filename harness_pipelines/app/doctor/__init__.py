"""`harness doctor`: what can keep an installation from working, each with what to do; one module for each system."""
