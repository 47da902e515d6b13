"""Host tools, the toolsets that they are granted by, and what a child's arguments must be."""
