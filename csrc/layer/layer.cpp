// Loads the kernels of this folder, and sends prefill attention to the kernel of the device.
//
// The build defines TG_PREFILL_SM90 and TG_PREFILL_SM80 where it compiles these kernels.
#include <cuda_runtime.h>

#include <initializer_list>

#include "common/kernel.hpp"
#include "layer/layer.h"

extern "C" {

tg_status tg_load_layer_append();
tg_status tg_load_layer_decode();
tg_status tg_load_layer_embed_gate();
tg_status tg_load_layer_gather();
tg_status tg_load_layer_norm();
tg_status tg_load_layer_quantise();
tg_status tg_load_layer_sample();
tg_status tg_load_layer_prefill_sm80();
tg_status tg_load_layer_prefill_sm90();
tg_status tg_prefill_sm80(const tg_prefill_args* args);
tg_status tg_prefill_sm90(const tg_prefill_args* args);
int64_t tg_prefill_sm90_workspace(const tg_prefill_args* args);

}  // extern "C"

namespace {

// Whether wgmma and TMA compute prefill attention on the current device.
tg_status is_sm90(bool* is) {
  int device = 0, major = 0, minor = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (!error) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (!error) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  *is = major == 9 && minor == 0;
  return tilegemm::cuda_status(error);
}

}  // namespace

extern "C" {

tg_status tg_load_layers(void) {
  bool sm90 = false;
  if (const tg_status status = is_sm90(&sm90)) return status;
  for (const auto load : {tg_load_layer_append, tg_load_layer_decode, tg_load_layer_embed_gate, tg_load_layer_gather,
                          tg_load_layer_norm, tg_load_layer_quantise, tg_load_layer_sample}) {
    if (const tg_status status = load()) return status;
  }
#ifdef TG_PREFILL_SM90
  if (sm90) return tg_load_layer_prefill_sm90();
#endif
#ifdef TG_PREFILL_SM80
  if (!sm90) return tg_load_layer_prefill_sm80();
#endif
  return TG_OK;
}

tg_status tg_prefill_launch(const tg_prefill_args* args) {
  bool sm90 = false;
  if (const tg_status status = is_sm90(&sm90)) return status;
#ifdef TG_PREFILL_SM90
  if (sm90) return tg_prefill_sm90(args);
#endif
#ifdef TG_PREFILL_SM80
  if (!sm90) return tg_prefill_sm80(args);
#endif
  return TG_UNSUPPORTED;
}

int64_t tg_prefill_workspace(const tg_prefill_args* args) {
  bool sm90 = false;
  if (is_sm90(&sm90) != TG_OK) return 0;
#ifdef TG_PREFILL_SM90
  if (sm90) return tg_prefill_sm90_workspace(args);
#endif
  return 0;
}

}  // extern "C"
