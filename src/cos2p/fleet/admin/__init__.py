"""Commands of those who start runs and look after them: kits for every machine, submitting, following, status."""
