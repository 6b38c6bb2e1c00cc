"""The robust filter keeps a malicious device from the model, whatever the method. It stands between the update
reader and the merge:

    bound       no segment's step is much larger than what the fleet's usually are
    standing    whose updates keep pointing elsewhere counts less
    combine     where three or more hold a scalar: their median, trimmed mean or geometric median instead of a mean
    claims      samples that a device says it has count up to a multiple of the fleet's median

`filter` puts them together. A merge need not know of them: it gets the same updates with bounded, weighed down or
combined steps in them. `settings` is the recipe's [robust].
"""
