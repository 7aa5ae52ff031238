//! The origin of a table, and the check that the origin matches the machine in use.

use super::Refusal;
use crate::arch::DeviceInfo;
use serde::{Deserialize, Serialize};

/// The origin of a table: the head of its file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Version of this crate.
    pub crate_version: String,
    /// The GPU model, as the driver names it.
    pub gpu: String,
    /// Version of the driver.
    pub driver: String,
    /// CUDA version of the compiler of the kernels.
    pub cuda: String,
    /// Version of the vendor library; for the reader.
    pub cublas: String,
    /// The commit that the kernels were built from; for the reader.
    pub git: String,
    /// UTC; for the reader.
    pub date: String,
}

impl Origin {
    /// Crate and GPU in use, and the other fields as far as this build knows them.
    pub fn of_this_build(device: &DeviceInfo) -> Self {
        let unknown = || "unknown".to_string();
        let Host { gpu, driver, cuda } = Host::here(device);
        Self {
            crate_version: env!("CARGO_PKG_VERSION").into(),
            gpu,
            driver: driver.unwrap_or_else(unknown),
            cuda: cuda.unwrap_or_else(unknown),
            cublas: unknown(),
            git: unknown(),
            date: unknown(),
        }
    }

    /// Checks that this version of the crate made the table.
    pub(super) fn fits_build(&self) -> Result<(), Refusal> {
        let crate_version = env!("CARGO_PKG_VERSION");
        match self.crate_version == crate_version {
            true => Ok(()),
            false => Err(Refusal::CrateVersion { have: self.crate_version.clone(), need: crate_version.into() }),
        }
    }

    /// Checks that the table was made on a machine like `host`.
    pub(super) fn fits(&self, host: &Host) -> Result<(), Refusal> {
        if self.gpu != host.gpu {
            return Err(Refusal::Gpu { have: self.gpu.clone(), need: host.gpu.clone() });
        }
        if let Some(driver) = host.driver.as_ref().filter(|driver| branch(driver) != branch(&self.driver)) {
            return Err(Refusal::Driver { have: branch(&self.driver).into(), need: branch(driver).into() });
        }
        if let Some(cuda) = host.cuda.as_ref().filter(|cuda| **cuda != self.cuda) {
            return Err(Refusal::Cuda { have: self.cuda.clone(), need: cuda.clone() });
        }
        Ok(())
    }
}

/// 580 of 580.159.04: the later numbers of a branch count corrections.
fn branch(driver: &str) -> &str {
    driver.split('.').next().unwrap_or(driver)
}

/// The machine that a table is checked against: a real machine or a hypothetical one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// The GPU model, as the driver names it.
    pub gpu: String,
    /// Version of the driver; `None` where there is no driver, or the driver gives no version.
    pub driver: Option<String>,
    /// CUDA version of the compiler of this build's kernels; `None` for a build without kernels.
    pub cuda: Option<String>,
}

impl Host {
    /// A hypothetical device: no driver, and no kernels.
    pub fn hypothetical(device: &DeviceInfo) -> Self {
        Self { gpu: device.name.clone(), driver: None, cuda: None }
    }

    /// A device of this machine, with the driver and this build's kernels.
    pub fn here(device: &DeviceInfo) -> Self {
        if !cfg!(feature = "cuda") {
            return Self::hypothetical(device);
        }
        // build.rs sets the variable to words where no kernel was compiled.
        let cuda = env!("TILEGEMM_NVCC_VERSION");
        let cuda = cuda.starts_with(|first: char| first.is_ascii_digit()).then(|| cuda.to_string());
        let driver = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
        Self { gpu: device.name.clone(), driver: driver.as_deref().and_then(driver_version), cuda }
    }
}

/// From `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Nov ...`; the line of the open modules has
/// further words.
fn driver_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version = |word: &&str| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    line.split_whitespace().find(is_version).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::driver_version;

    #[test]
    fn the_driver_is_read_from_proc() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Jun  3 10:00:00 UTC 2026\n\
                      GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (dvs@host)\n";
        assert_eq!(driver_version(closed).as_deref(), Some("580.159.04"));
        assert_eq!(driver_version(open).as_deref(), Some("575.57.08"));
        assert_eq!(driver_version("GCC version: 12.3.0\n"), None);
    }
}
