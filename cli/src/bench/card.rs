//! Clocks, power and temperature of the measured card, from NVML.

use super::report::{Card, Clocks};
use crate::Result;
use candle::CudaDevice;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::Nvml;

pub struct Monitor {
    nvml: Nvml,
    uuid: String,
}

impl Monitor {
    /// Finds the card with CUDA's ordinal `device`.
    pub fn new(device: &CudaDevice) -> Result<Self> {
        let nvml = Nvml::init().map_err(|e| format!("NVML: {e}; it comes with the driver (libnvidia-ml.so.1)"))?;
        let bytes = device.cuda_stream().context().uuid()?.bytes.map(|byte| byte as u8);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let [a, b, c, d, e] = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        let monitor = Self { nvml, uuid: format!("GPU-{a}-{b}-{c}-{d}-{e}") };
        monitor.now()?;
        Ok(monitor)
    }

    fn device(&self) -> Result<nvml_wrapper::Device<'_>> {
        Ok(self
            .nvml
            .device_by_uuid(self.uuid.as_str())
            .map_err(|e| format!("NVML does not know {}: {e}", self.uuid))?)
    }

    pub fn now(&self) -> Result<Card> {
        let device = self.device()?;
        Ok(Card {
            sm_mhz: device.clock_info(Clock::SM)?,
            power_w: f64::from(device.power_usage()?) / 1e3,
            temperature_c: device.temperature(TemperatureSensor::Gpu)?,
        })
    }

    pub fn driver(&self) -> Result<String> {
        Ok(self.nvml.sys_driver_version()?)
    }

    pub fn clocks(&self) -> Result<Clocks> {
        let device = self.device()?;
        Ok(Clocks { sm: device.max_clock_info(Clock::SM)?, memory: device.max_clock_info(Clock::Memory)? })
    }

    pub fn power_limit_w(&self) -> Result<f64> {
        Ok(f64::from(self.device()?.enforced_power_limit()?) / 1e3)
    }
}
