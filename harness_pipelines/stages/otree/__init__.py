"""OTree: the batch view, clustered by value; recalls and reclusters."""
