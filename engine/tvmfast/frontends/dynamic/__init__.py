"""Networks with dynamic dims, merged from imports at a few static ones.

probing  the imports at probes, and whether their merged graph is valid at all dims
merge    several modules with static dims merged into one with dynamic dims
"""
