//! The matrix product as a candle op.
//!
//! [`GemmExt::gemm`] is `matmul` without its limits: any rank from 2, any strides, batches broadcast without copies.
//! [`Gemm`] adds an epilogue to the product. On a GPU the dispatcher chooses the kernel; on the CPU candle's own
//! product runs, of f16 and bf16 in f32. Both ops have gradients.

#[cfg(feature = "cuda")]
use super::cuda;
use super::gemm_op::WithResidual;
use super::into::Into;
use super::lowering::{format_of, product_shape, GemmOp, Third};
use super::numbers::put;
use super::scaled::product_of;
#[cfg(feature = "cuda")]
use super::tensors::key;
use crate::layer::GateFunction;
use crate::problem::{Activation, F32Mode, Gate};
use ::candle::{DType, Device, Error, Result, Shape, Tensor};

/// The methods `gemm` and `matmul_scaled` of tensors.
pub trait GemmExt {
    /// The matrix product `self @ rhs`.
    ///
    /// `gemm` accepts the operands of [`Tensor::matmul`], with the same results and errors. Operands that `matmul`
    /// refuses because of their rank or their batch dimensions are broadcast as by `broadcast_matmul`, but without a
    /// copy.
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use candle_tilegemm::GemmExt;
    ///
    /// let x = Tensor::randn(0f32, 1f32, (2, 3, 4), &Device::Cpu)?;
    /// let w = Tensor::randn(0f32, 1f32, (5, 4), &Device::Cpu)?;
    /// let y = x.gemm(&w.t()?)?; // one weight for the whole batch
    /// assert_eq!(y.dims(), [2, 3, 5]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    fn gemm(&self, rhs: &Tensor) -> Result<Tensor>;

    /// `(self * x_scale) @ (w * w_scale)^T` of operands in 8 bits, as `torch._scaled_mm` has it: `self` (M, K) and `w` (N, K) in F8E4M3, the
    /// result (M, N) in `out`: F32, BF16 or F16. No gradient passes.
    ///
    /// Factors are in F32: one; one for each row, `[rows]` or `[rows, 1]`; or of blocks, (M, K / 128) of `self` and (N / 128, K / 128) of `w`,
    /// rounded up. Any goes with any. On the CPU operands are dequantised to f32. On a GPU (feature `narrow`) K is a multiple of 16; factors of
    /// blocks of `self` are copied, unless they are the transpose of a contiguous (K / 128, M).
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use candle_tilegemm::GemmExt;
    ///
    /// let x = Tensor::new(&[[1f32, 2.], [0., 448.]], &Device::Cpu)?.to_dtype(DType::F8E4M3)?;
    /// let w = Tensor::new(&[[1f32, 0.5]], &Device::Cpu)?.to_dtype(DType::F8E4M3)?;
    /// let x_scale = Tensor::new(&[1f32, 0.25], &Device::Cpu)?; // of rows
    /// let y = x.matmul_scaled(&w, &x_scale, &Tensor::new(10f32, &Device::Cpu)?, DType::F32)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[20.], [560.]]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Operands and factors of other shapes, types and devices, tensors that track gradients, and the errors of the kernel's launch.
    fn matmul_scaled(&self, w: &Tensor, x_scale: &Tensor, w_scale: &Tensor, out: DType) -> Result<Tensor>;
}

impl GemmExt for Tensor {
    fn gemm(&self, rhs: &Tensor) -> Result<Tensor> {
        Gemm::new().forward(self, rhs)
    }

    fn matmul_scaled(&self, w: &Tensor, x_scale: &Tensor, w_scale: &Tensor, out: DType) -> Result<Tensor> {
        product_of([self, x_scale], [w, w_scale], out)
    }
}

/// `activation(alpha * lhs @ rhs + bias) + beta * residual`
///
/// Sums and epilogue are in f32, in f64 for f64, and the result is rounded once. One elementwise kernel applies the parts of the epilogue that the
/// chosen kernel does not fuse, by the same formulas. An activation of NaN is NaN. At -inf an activation has its limit, unlike
/// some of candle's own activations.
///
/// ```
/// use candle::{DType, Device, Tensor};
/// use candle_tilegemm::{Activation, Gemm};
///
/// let x = Tensor::randn(0f32, 1f32, (3, 4), &Device::Cpu)?;
/// let w = Tensor::randn(0f32, 1f32, (5, 4), &Device::Cpu)?;
/// let bias = Tensor::zeros(5, DType::F32, &Device::Cpu)?;
/// let y = Gemm::new().bias(&bias).activation(Activation::Silu).forward(&x, &w.t()?)?;
/// assert_eq!(y.dims(), [3, 5]);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Gemm {
    alpha: f64,
    beta: f64,
    pub(super) bias: Option<Tensor>,
    pub(super) residual: Option<Tensor>,
    pub(super) activation: Activation,
    f32_mode: Option<F32Mode>,
    batch_invariant: bool,
    pub(super) out_dtype: Option<DType>,
    broadcast_batch: bool,
    gates_c: bool,
    pub(super) gate: Option<(Gate, GateFunction)>,
    pub(super) scratch: Option<Tensor>,
}

impl Default for Gemm {
    fn default() -> Self {
        Self {
            alpha: 1.0,
            beta: 1.0,
            bias: None,
            residual: None,
            activation: Activation::Identity,
            f32_mode: None,
            batch_invariant: false,
            out_dtype: None,
            broadcast_batch: false,
            gates_c: false,
            gate: None,
            scratch: None,
        }
    }
}

impl Gemm {
    /// The plain product.
    pub fn new() -> Self {
        Self::default()
    }

    /// Scales the product. Where alpha is 0, the operands are not read: the product counts as 0, as in BLAS.
    pub fn alpha(mut self, alpha: f64) -> Self {
        self.alpha = alpha;
        self
    }

    /// Adds one value per column of the result: a tensor of shape `(n,)`.
    pub fn bias(mut self, bias: &Tensor) -> Self {
        self.bias = Some(bias.clone());
        self
    }

    /// Applies a function to the biased product.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Makes gates of columns of the biased product: the result, `function(gate) * up`, has half of its columns. The gates are the first half, or gates and
    /// numbers lie in turns. No gradient passes.
    ///
    /// On the CPU, and where a kernel fuses the gate, the result is rounded once. Elsewhere on a GPU a kernel of its own gates the product, which has been rounded.
    /// There [`forward_into`](Self::forward_into) needs memory for the product: [`scratch`](Self::scratch).
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use candle_tilegemm::nn::GateFunction;
    /// use candle_tilegemm::problem::Gate;
    /// use candle_tilegemm::Gemm;
    ///
    /// let x = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
    /// let gate_up = Tensor::new(&[[1f32, 1.], [0., -2.], [5., 0.], [0., 3.]], &Device::Cpu)?; // two gates, two numbers
    /// let y = Gemm::new().gate(Gate::Halves, GateFunction::Relu2).forward(&x, &gate_up.t()?)?;
    /// assert_eq!(y.to_vec2::<f32>()?, [[9. * 5., 0.]]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    pub fn gate(mut self, gate: Gate, function: GateFunction) -> Self {
        self.gate = Some((gate, function));
        self
    }

    /// Memory for a gated product that is not fused: contiguous, in the type of the result, with at least as many numbers as the product has before its gate.
    pub fn scratch(mut self, scratch: &Tensor) -> Self {
        self.scratch = Some(scratch.clone());
        self
    }

    /// Adds a tensor of the shape of the result, after the activation.
    pub fn residual(mut self, residual: &Tensor) -> Self {
        self.residual = Some(residual.clone());
        self
    }

    /// Scales the residual; 1 unless set. Where beta is 0, the residual is not read.
    pub fn beta(mut self, beta: f64) -> Self {
        self.beta = beta;
        self
    }

    /// Sets the precision of the product and its gradients, in f32 and on a GPU. Unless set, the precision is TF32
    /// where candle's `set_gemm_reduced_precision_f32` asks for TF32, else the mode of the process
    /// ([`f32_mode`](crate::f32_mode)).
    ///
    /// ```
    /// use candle::{Device, Tensor};
    /// use candle_tilegemm::{F32Mode, Gemm};
    ///
    /// let x = Tensor::randn(0f32, 1f32, (3, 4), &Device::Cpu)?;
    /// let logits = Gemm::new().f32_mode(F32Mode::Strict).forward(&x, &x.t()?)?;
    /// assert_eq!(logits.dims(), [3, 3]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    pub fn f32_mode(mut self, mode: F32Mode) -> Self {
        self.f32_mode = Some(mode);
        self
    }

    /// Makes each row of the result independent of the other rows, to the bit, on a GPU: neither the number of rows nor a row's place
    /// among them decides how its products are added up. The gradients are as independent of their rows.
    /// [`set_batch_invariant`](crate::dispatch::set_batch_invariant) does this for the whole process.
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use candle_tilegemm::Gemm;
    ///
    /// let (x, w) = (Tensor::ones((300, 64), DType::BF16, &Device::Cpu)?, Tensor::ones((64, 32), DType::BF16, &Device::Cpu)?);
    /// let gemm = Gemm::new().batch_invariant();
    /// let (one, all) = (gemm.forward(&x.narrow(0, 7, 1)?, &w)?, gemm.forward(&x, &w)?);
    /// assert_eq!(one.to_vec2::<half::bf16>()?[0], all.to_vec2::<half::bf16>()?[7]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    pub fn batch_invariant(mut self) -> Self {
        self.batch_invariant = true;
        self
    }

    /// Stores the result in `dtype`: `DType::F32` for f16 and bf16 operands, which saves the rounding of sums that are made in f32
    /// anyway, as for logits. Otherwise the operands' own type is the only one. Bias and residual have the type of the result.
    /// A gradient is rounded to the type of the operands before a product with an operand.
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use candle_tilegemm::Gemm;
    ///
    /// let x = Tensor::ones((3, 1001), DType::BF16, &Device::Cpu)?;
    /// let w = Tensor::ones((5, 1001), DType::BF16, &Device::Cpu)?;
    /// let logits = Gemm::new().out_dtype(DType::F32).forward(&x, &w.t()?)?;
    /// assert_eq!(logits.to_vec2::<f32>()?[2], [1001.0; 5]); // bf16 has 1000 and 1004
    /// # Ok::<(), candle::Error>(())
    /// ```
    pub fn out_dtype(mut self, dtype: DType) -> Self {
        self.out_dtype = Some(dtype);
        self
    }

    /// Multiplies by this tensor after the activation, where [`residual`](Self::residual) adds one; without gradients.
    pub(super) fn gated(self, up: &Tensor) -> Self {
        Self { gates_c: true, ..self.residual(up) }
    }

    /// Broadcasts batch dimensions as `broadcast_matmul` does, even where [`Tensor::matmul`] accepts the operands:
    /// `matmul` multiplies operands of equal rank with equal numbers of matrices pair by pair, whatever their batch
    /// dimensions are.
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use candle_tilegemm::{Gemm, GemmExt};
    ///
    /// let x = Tensor::ones((1, 6, 2, 3), DType::F32, &Device::Cpu)?;
    /// let w = Tensor::ones((6, 1, 3, 4), DType::F32, &Device::Cpu)?;
    /// assert_eq!(x.gemm(&w)?.dims(), [1, 6, 2, 4]); // six pairs, as in `x.matmul(&w)`
    /// assert_eq!(Gemm::new().broadcast_batch().forward(&x, &w)?.dims(), [6, 6, 2, 4]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    pub fn broadcast_batch(mut self) -> Self {
        self.broadcast_batch = true;
        self
    }

    /// Computes the product and its epilogue.
    ///
    /// # Errors
    /// Shapes, devices and dtypes that do not fit, with the messages of [`Tensor::matmul`]; and the errors of the
    /// kernel's launch.
    pub fn forward(&self, lhs: &Tensor, rhs: &Tensor) -> Result<Tensor> {
        if self.gate.is_some() {
            return self.forward_gated(lhs, rhs);
        }
        let (rhs, _) = self.check(lhs, rhs)?;
        let op = self.op()?;
        let third = match op.third {
            Some(Third::Bias) => self.bias.as_ref(),
            Some(Third::Residual) => self.residual.as_ref(),
            None => None,
        };
        let result = op.apply(lhs, &rhs, third)?;
        match self.used_residual().filter(|residual| self.bias.is_some() && residual.track_op()) {
            Some(residual) => result.apply_op2(residual, WithResidual { beta: self.beta }),
            None => Ok(result),
        }
    }

    /// Computes the product and its epilogue into a tensor of the result's shape and type, whose rows may be apart: columns of a wider one. The result may be
    /// the residual itself. The bits are those of [`forward`](Self::forward), unless the place in memory asks for another kernel.
    ///
    /// On a GPU it allocates nothing and copies nothing, and is legal in a capture after [`prepare`].
    ///
    /// ```
    /// use candle::{DType, Device, Tensor};
    /// use candle_tilegemm::Gemm;
    ///
    /// let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu)?;
    /// let w = Tensor::ones((4, 3), DType::F32, &Device::Cpu)?;
    /// let sum = Tensor::ones((2, 4), DType::F32, &Device::Cpu)?;
    /// Gemm::new().residual(&sum).forward_into(&x, &w.t()?, &sum)?;
    /// assert_eq!(sum.to_vec2::<f32>()?, [[4.0; 4]; 2]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`forward`](Self::forward); a tensor that does not fit or shares memory with an operand; tensors that track gradients; and on a GPU operands that
    /// [`forward`](Self::forward) would copy.
    pub fn forward_into(&self, lhs: &Tensor, rhs: &Tensor, out: &Tensor) -> Result<()> {
        if self.gate.is_some() {
            return self.gated_into(lhs, rhs, out);
        }
        let (same, shape) = self.check(lhs, rhs)?;
        let residual = self.residual.as_ref().filter(|_| self.beta != 0.0);
        let third = self.bias.is_some().then_some(Third::Bias);
        let op = self.op_of(third, residual.cloned());
        let into = Into { op: &op, lhs, rhs: &same, bias: self.bias.as_ref(), residual, out };
        let is_residual = into.check(self.out_dtype.unwrap_or(lhs.dtype()), shape.dims())?;
        match lhs.device() {
            _ if out.elem_count() == 0 => Ok(()),
            #[cfg(feature = "cuda")]
            Device::Cuda(_) if key(&same) != key(rhs) => {
                ::candle::bail!("gemm: rhs is not contiguous, and gets other batch dimensions; call `.contiguous()?` on it before a product into a tensor")
            }
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => cuda::into::product(device, &into, is_residual),
            _ => {
                let _ = is_residual;
                put(&self.forward(lhs, rhs)?, out)
            }
        }
    }

    /// The operand rhs with the batch dimensions of the product, whose shape without a gate is the second: all that is checked before a launch.
    pub(super) fn check(&self, lhs: &Tensor, rhs: &Tensor) -> Result<(Tensor, Shape)> {
        let (same, shape) = matched(lhs, rhs, self.broadcast_batch)?;
        same_device_and_dtype(lhs, &same, "matmul")?;
        format_of(lhs.dtype())?;
        self.check_out(lhs.dtype())?;
        self.check_extras(lhs, &shape)?;
        Ok((same, shape))
    }

    /// The residual, unless beta is 0: then the residual only gets a gradient of zeros.
    fn used_residual(&self) -> Option<&Tensor> {
        self.residual.as_ref().filter(|residual| self.beta != 0.0 || residual.track_op())
    }

    /// The op with the whole epilogue.
    fn op(&self) -> Result<GemmOp> {
        let third = match (&self.bias, self.used_residual()) {
            (Some(_), _) => Some(Third::Bias),
            (None, Some(_)) => Some(Third::Residual),
            (None, None) => None,
        };
        // An op has three inputs. The fourth input stays outside of its graph: `WithResidual` gives it a gradient.
        let beside = self.used_residual().filter(|_| third == Some(Third::Bias)).map(Tensor::detach);
        Ok(self.op_of(third, beside.map(|residual| residual.contiguous()).transpose()?))
    }

    pub(super) fn op_of(&self, third: Option<Third>, residual: Option<Tensor>) -> GemmOp {
        GemmOp {
            alpha: self.alpha,
            beta: self.beta,
            activation: self.activation,
            f32_mode: self.f32_mode,
            batch_invariant: self.batch_invariant,
            out: self.out_dtype,
            third,
            residual,
            gates_c: self.gates_c,
        }
    }

    fn check_out(&self, operands: DType) -> Result<()> {
        match (operands, self.out_dtype) {
            (DType::F16 | DType::BF16, Some(DType::F32)) | (_, None) => Ok(()),
            (_, Some(out)) if out == operands => Ok(()),
            (_, Some(out)) => ::candle::bail!(
                "gemm: no result in {out:?} of operands in {operands:?}; f32 of f16 and bf16 is the only other type of a \
                 result, convert the result with `to_dtype`"
            ),
        }
    }

    /// Whether a bias or residual lies on the operands' device and has the type of the result.
    fn like_result(&self, lhs: &Tensor, extra: &Tensor, name: &'static str) -> Result<()> {
        let op = if name == "bias" { "gemm bias" } else { "gemm residual" };
        match self.out_dtype {
            Some(out) if out != lhs.dtype() => {
                same_device(lhs, extra, op)?;
                if extra.dtype() != out {
                    let have = extra.dtype();
                    ::candle::bail!(
                        "gemm: the {name} is in {have:?}, the result in {out:?}; convert the {name} with `to_dtype`"
                    );
                }
                Ok(())
            }
            _ => same_device_and_dtype(lhs, extra, op),
        }
    }

    /// Whether bias and residual fit a result of this shape.
    fn check_extras(&self, lhs: &Tensor, shape: &Shape) -> Result<()> {
        let n = shape.dims()[shape.rank() - 1];
        if let Some(bias) = &self.bias {
            self.like_result(lhs, bias, "bias")?;
            if bias.dims() != [n] {
                ::candle::bail!("gemm: the bias has shape {:?}, expected [{n}], one value per column", bias.dims());
            }
        }
        if let Some(residual) = &self.residual {
            self.like_result(lhs, residual, "residual")?;
            let (dims, expected) = (residual.dims(), shape.dims());
            if dims != expected {
                ::candle::bail!("gemm: the residual has shape {dims:?}, expected {expected:?}, that of the result");
            }
        }
        Ok(())
    }
}

/// Prepares a device: loads all kernels that are built for the device, and allocates the workspace
/// ([`crate::workspace`]) of candle's stream on the device.
///
/// Without this call, first products do the same work. Call `prepare` before that work may fail: before device memory
/// is full, and before products are captured into a CUDA graph on any thread. While a thread captures in global mode,
/// the first product of another thread would invalidate the capture. A device of `Device::new_cuda` has a stream on
/// each thread, so each thread calls `prepare` for its own stream.
///
/// Returns the workspace's size in bytes; 0 on the CPU, and where `TILEGEMM_WORKSPACE=0` switches the workspace off.
///
/// ```
/// use candle::Device;
///
/// assert_eq!(candle_tilegemm::prepare(&Device::Cpu)?, 0);
/// # Ok::<(), candle::Error>(())
/// ```
///
/// # Errors
/// A device without a driver or kernels, and [`crate::Error::Workspace`] with the reason why there is no workspace.
pub fn prepare(device: &Device) -> Result<u64> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cuda::prepare(device),
        _ => Ok(0),
    }
}

/// The operand rhs, and the shape of the product. Where `matmul` accepts the operands, rhs gets the batch dimensions of lhs, unless `broadcast` is set.
fn matched(lhs: &Tensor, rhs: &Tensor, broadcast: bool) -> Result<(Tensor, Shape)> {
    let mismatch =
        || Error::ShapeMismatchBinaryOp { lhs: lhs.shape().clone(), rhs: rhs.shape().clone(), op: "matmul" }.bt();
    let (l, r) = (lhs.dims(), rhs.dims());
    if l.len() < 2 || r.len() < 2 || l[l.len() - 1] != r[r.len() - 2] {
        return Err(mismatch());
    }
    let (l_batch, (r_batch, r_matrix)) = (&l[..l.len() - 2], r.split_at(r.len() - 2));
    let count = |batch: &[usize]| batch.iter().product::<usize>();
    let rhs = match !broadcast && l_batch != r_batch && l.len() == r.len() && count(l_batch) == count(r_batch) {
        true => rhs.reshape(Shape::from(l_batch).extend(r_matrix))?,
        false => rhs.clone(),
    };
    let shape = product_shape(l, rhs.dims()).map_err(|_| mismatch())?;
    Ok((rhs, shape))
}

fn same_device(lhs: &Tensor, rhs: &Tensor, op: &'static str) -> Result<()> {
    let (l, r) = (lhs.device().location(), rhs.device().location());
    if l != r {
        return Err(Error::DeviceMismatchBinaryOp { lhs: l, rhs: r, op }.bt());
    }
    Ok(())
}

fn same_device_and_dtype(lhs: &Tensor, rhs: &Tensor, op: &'static str) -> Result<()> {
    same_device(lhs, rhs, op)?;
    if lhs.dtype() != rhs.dtype() {
        return Err(Error::DTypeMismatchBinaryOp { lhs: lhs.dtype(), rhs: rhs.dtype(), op }.bt());
    }
    Ok(())
}
