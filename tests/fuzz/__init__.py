"""Fuzzes the host by real children: run.py starts it, scripts.py is what they do, host.py what must hold."""
