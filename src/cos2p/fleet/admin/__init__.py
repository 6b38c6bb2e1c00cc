"""Who starts runs and looks after them: kits for every machine, submitting, following, status."""
