"""What crosses a process boundary: frozen tagged structs, one module per receiver, and the codec."""
