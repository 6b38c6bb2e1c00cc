"""A task of Co-S²P against one of FedRolex at the same rate, before and after what was done to make it cheap."""
