"""Jobs people have with a folder of images, each a pure function and one that takes codes."""
