"""upkernel: GPU kernels for vLLM, SGLang and FlashInfer (the folder kernels/ is installed as the package `upkernel`)."""
