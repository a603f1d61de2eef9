"""The old command line and the old pictures of graphs."""
