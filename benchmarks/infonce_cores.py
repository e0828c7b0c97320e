"""The CUDA kernels' ways of multiplying; the environment variable chooses one."""

CORES = ("mma", "wgmma")
VARIABLE = "MIRROR_RT_CUDA_CORE"
