"""What bipareto costs and reaches beside its alternatives: the suites of `bipareto bench`."""
