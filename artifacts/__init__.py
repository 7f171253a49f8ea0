"""The bundle: its format, its reader and writer, and the errors of every layer.

`FORMAT.md` is the specification of the format, `manifest.py` its records. `writer.py` writes a bundle: it takes over
the weights of the bundle that the check ran, a draft beside the final file (`weight_file.py`), and leaves those that
the bundle it replaces has already (`files/earlier.py`). `layouts.py` checks the layouts of packed weights, and
`frozen.py` has the decorator of classes that every start of the runtime defines (decision 36). `packed.py` has arrays
of 4-bit integers, two in a byte (decision 103), and what stands in place of an array in general.
"""
