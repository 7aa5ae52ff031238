//! Files with the logits of a build, which other builds compare with theirs.

use anyhow::{ensure, Context, Result};
use candle::{safetensors, DType, Device, Tensor};
use std::collections::HashMap;
use std::path::Path;

/// The file has the logits of each step, and in bytes what the logits are of.
pub fn save(file: &Path, about: &str, logits: &[Tensor]) -> Result<()> {
    let all = Tensor::cat(logits, 0)?.flatten_from(1)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
    let about = Tensor::new(about.as_bytes(), &Device::Cpu)?;
    safetensors::save(&HashMap::from([("logits", all), ("about", about)]), file)
        .with_context(|| format!("cannot write {}", file.display()))
}

pub fn load(file: &Path, about: &str) -> Result<Vec<Tensor>> {
    let name = file.display();
    let tensors = safetensors::load(file, &Device::Cpu).with_context(|| format!("cannot read {name}"))?;
    let tensor = |part: &str| {
        tensors.get(part).with_context(|| format!("{name} has no {part}; --save-logits writes such files"))
    };
    let bytes = tensor("about")?.to_vec1::<u8>()?;
    let of_file = String::from_utf8_lossy(&bytes);
    ensure!(of_file == about, "{name} has logits of {of_file}; this run is of {about}");
    let logits = tensor("logits")?;
    (0..logits.dim(0)?).map(|step| Ok(logits.narrow(0, step, 1)?)).collect()
}
