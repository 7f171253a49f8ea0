"""Numbers in the compiler that measurements give: those of a processor core, and those of placement."""
