"""Fused operations: a torch.nn.Module with its own backward pass, run by a kernel or by PyTorch."""
