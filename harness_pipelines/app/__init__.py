"""Where everything comes together: what the settings name is opened here, and given to flows."""
