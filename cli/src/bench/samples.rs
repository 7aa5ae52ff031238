//! Times of one arm.

/// Sorted times.
#[derive(Debug, Clone, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// A single time.
    #[cfg(feature = "bench")]
    pub fn once(time: f64) -> Self {
        Self(vec![time])
    }

    pub fn push(&mut self, time: f64) {
        let at = self.0.partition_point(|have| *have <= time);
        self.0.insert(at, time);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A quantile; 0.5 is the median.
    pub fn at(&self, share: f64) -> f64 {
        let last = (self.0.len().max(1) - 1) as f64;
        self.0.get((last * share).round() as usize).copied().unwrap_or(f64::NAN)
    }

    pub fn median(&self) -> f64 {
        self.at(0.5)
    }
}
