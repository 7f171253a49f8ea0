"""From the query to a plan: passes, affinities and costs."""
