"""Object stores: the only place that makes their clients, and that says how another engine reaches them."""
