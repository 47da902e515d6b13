"""What tests start in children. On a test run's path, so `children.faults` names it here and in the child."""
