"""One child's life, every child's loop."""
