"""Fuzzes the host by real children: run.py is the program, scripts.py what a child does, host.py what must hold."""
