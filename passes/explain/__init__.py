"""Reasons of a plan: why nodes are on their devices, what alternatives cost, and why values are transferred.

`explanation.py` has all of it for a plan, `text.py` prints it, `record.py` keeps it in a bundle. The HTML report:
`report.py` packs the files of `page/`, which it lists, with the data of `page_data.py` into one page; `measured.py` has
the times of a profile, `details.py` what the graph of passes does not have. Decision 89.
"""
