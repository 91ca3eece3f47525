"""The CUDA backend.

Not named `cuda`: numba-cuda's import hook takes every module whose name contains "numba.cuda" for
its own and recurses without end, and it is installed on many machines with a GPU.
"""
