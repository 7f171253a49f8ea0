"""Single layers and operators on the CPU, of fixed and of dynamic sizes. `cases/` has their models."""
