"""The plan of a run, computed once when a bundle is loaded, without use of a device.

`schedule.py` has the steps, `order.py` their order: copies start early, waits come late. `slots.py` finds values that
share a buffer, and `lending_turns.py` when memory that a device lends changes between device and host.
"""
