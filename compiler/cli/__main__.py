"""`python -m heterocc.compiler.cli`."""

from heterocc.compiler.cli.main import main

main()
