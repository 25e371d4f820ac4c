"""Mathematics: pure functions of tensors, and the readable PyTorch body of each operation."""
