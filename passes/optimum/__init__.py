"""The placement of least cost: as a minimum cut, as an integer programme, and by descent between the two."""
