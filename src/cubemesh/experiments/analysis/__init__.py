"""Analysis shared by experiments: groups, ratios, comparisons, tables of published rows."""
