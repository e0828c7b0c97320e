"""Name the cores of the CUDA kernels, and the environment variable that chooses one."""

CORES = ("mma", "tma")
VARIABLE = "MIRROR_RT_CUDA_CORE"
