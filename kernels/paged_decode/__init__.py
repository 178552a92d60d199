"""Paged decode attention: the newest query tokens of every request over a paged KV cache.

`import upkernel.paged_decode.torch_op` registers ``torch.ops.upkernel.paged_decode``; this package alone imports nothing,
because an engine asks for it in every process.
"""
