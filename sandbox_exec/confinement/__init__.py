"""What is wanted, compiled to what this host can enforce."""
