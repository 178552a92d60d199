"""One module a command: its docstring is the help, `configure` adds arguments, `main` does the work and returns an ExitCode."""
