// What every rung's launch function ends with.
#pragma once
#include <cuda_runtime.h>

#include "ladder.h"

inline int rung_status(cudaError_t error) { return error == cudaSuccess ? TG_RUNG_OK : TG_RUNG_CUDA_ERROR; }

// The status of the launch just made on this thread.
inline int launched() { return rung_status(cudaGetLastError()); }
