"""How results look: tables for terminal and files, figures."""
