"""Jobs people have with a folder of images: a pure function each, and one that takes codes."""
