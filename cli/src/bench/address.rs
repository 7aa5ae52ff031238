//! Where a tensor lies.

use crate::Result;
use candle::backend::BackendStorage;
use candle::cuda_backend::cudarc::driver::DevicePtr;
use candle::{Storage, Tensor};
use half::{bf16, f16};

/// Address of the first element of a contiguous tensor.
pub fn address(tensor: &Tensor) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    let before = (layout.start_offset() * tensor.dtype().size_in_bytes()) as u64;
    let Storage::Cuda(storage) = &*storage else { return Err("a tensor is not on the GPU".into()) };
    let stream = storage.device().cuda_stream();
    let storage_begin = match storage.dtype() {
        candle::DType::F16 => storage.as_cuda_slice::<f16>()?.device_ptr(&stream).0,
        candle::DType::BF16 => storage.as_cuda_slice::<bf16>()?.device_ptr(&stream).0,
        candle::DType::F32 => storage.as_cuda_slice::<f32>()?.device_ptr(&stream).0,
        candle::DType::F64 => storage.as_cuda_slice::<f64>()?.device_ptr(&stream).0,
        candle::DType::U8 => storage.as_cuda_slice::<u8>()?.device_ptr(&stream).0,
        candle::DType::U32 => storage.as_cuda_slice::<u32>()?.device_ptr(&stream).0,
        other => return Err(format!("{} is no type of operands and lists", other.as_str()).into()),
    };
    Ok(storage_begin + before)
}
