"""What runs the requests of a session.

`loaded.py` is one choice of devices, `empty.py` its answers to requests without elements, `replacing.py` its runs that
replace initializers, `changing.py` one that is replaced when a better one is loaded or its device is lost, and
`several.py` those that share the requests of `MULTI`. `runners.py` opens what the caller asks for.
"""
