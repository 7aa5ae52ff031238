//! The feed-forward part of a layer: gates, and two products.

use super::gate::gate_into;
use super::merged::MergedLinear;
#[cfg(feature = "cuda")]
use super::narrow::QuantLinear;
use super::{Linear, QLinear, QWeights};
use crate::candle::tensors::{unwritten, Block, FLOATS};
use crate::layer::GateFunction;
use crate::problem::{Activation, Gate};
use ::candle::{bail, DType, Module, Result, Tensor};
use candle_nn::{init::DEFAULT_KAIMING_NORMAL, VarBuilder};

const BLOCK: Block = Block("GatedMlp");

/// `down(function(gate(x)) * up(x))`: the feed-forward part of llama, mistral, qwen and gemma, with SwiGLU, GEGLU, or ReLU^2 as the gate.
///
/// `gate` and `up` are one product of merged weights, with the gate in its epilogue where that is faster, and `down` adds the residual in its epilogue. Weights are dense or in blocks; inputs are in f16, bf16 or f32, of
/// any rank. No gradient passes.
///
/// ```
/// use candle::{DType, Device, Module, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// use candle_tilegemm::nn::{gated_mlp, GateFunction};
///
/// let weights = VarMap::new();
/// let vb = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
/// let layer = gated_mlp(16, 40, GateFunction::SwiGlu, vb.pp("mlp"))?; // gate_proj, up_proj and down_proj
/// let x = Tensor::ones((3, 16), DType::F32, &Device::Cpu)?;
/// let y = layer.forward_residual(&x, &x)?;
/// // In a loop, and in a captured graph: no allocation.
/// let workspace = layer.workspace(8, DType::F32)?; // one for all layers of these sizes
/// let residual = x.copy()?;
/// layer.forward_residual_into(&x, &residual, &workspace, &residual)?;
/// assert_eq!(residual.to_vec2::<f32>()?, y.to_vec2::<f32>()?);
/// # Ok::<(), candle::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct GatedMlp {
    gate_up: MergedLinear,
    down: MergedLinear,
    gate: Gate,
    function: GateFunction,
}

/// The layer with the weights `gate_proj` and `up_proj`, (inner, hidden), and `down_proj`, (hidden, inner), without biases. No gradient reaches the variables.
///
/// # Errors
/// Missing weights, and weights of another shape.
pub fn gated_mlp(hidden: usize, inner: usize, function: GateFunction, vb: VarBuilder) -> Result<GatedMlp> {
    let layer = |name: &str, shape: (usize, usize)| -> Result<Linear> {
        Ok(Linear::new(vb.pp(name).get_with_hints(shape, "weight", DEFAULT_KAIMING_NORMAL)?.detach(), None))
    };
    let gate_up = MergedLinear::new([layer("gate_proj", (inner, hidden))?, layer("up_proj", (inner, hidden))?])?;
    GatedMlp::new(gate_up, layer("down_proj", (hidden, inner))?, function)
}

impl GatedMlp {
    /// A layer of merged weights, gates first, and of `down`: each a [`Linear`], a [`QLinear`] or a [`MergedLinear`].
    ///
    /// ```
    /// use candle::{Device, Module, Tensor};
    /// use candle_tilegemm::nn::{GateFunction, GatedMlp, Linear};
    ///
    /// let gate_up = Linear::new(Tensor::new(&[[1f32], [2.]], &Device::Cpu)?, None); // a gate, and a number that it multiplies
    /// let down = Linear::new(Tensor::new(&[[10f32]], &Device::Cpu)?, None);
    /// let layer = GatedMlp::new(gate_up, down, GateFunction::Relu2)?;
    /// assert_eq!(layer.forward(&Tensor::new(&[[3f32], [-3.]], &Device::Cpu)?)?.to_vec2::<f32>()?, [[540.], [0.]]); // 3^2 6 10
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Weights whose sizes do not fit, or on different devices.
    pub fn new(
        gate_up: impl Into<MergedLinear>,
        down: impl Into<MergedLinear>,
        function: GateFunction,
    ) -> Result<Self> {
        let (gate_up, down) = (gate_up.into(), down.into());
        let (both, inner) = (gate_up.columns(), down.inputs()?);
        if both != 2 * inner || !gate_up.device().same_device(&down.device()) {
            bail!(
                "GatedMlp: gate and up have {both} rows together on {:?}, and down has rows of {inner} on {:?}; expected twice as many, and one device",
                gate_up.device().location(),
                down.device().location()
            );
        }
        Ok(Self { gate_up, down, gate: Gate::Halves, function })
    }

    /// The same layer with gates and the numbers that they multiply in turns: rows 0, 2, .. of the merged weights are gates.
    pub fn interleaved(self) -> Self {
        Self { gate: Gate::Interleaved, ..self }
    }

    /// The weights of a GGUF file: `ffn_gate`, `ffn_up` and `ffn_down`. Blocks that are merged are copied: load them to the CPU to have them on a GPU once.
    ///
    /// # Errors
    /// Weights whose sizes do not fit, and the errors of `QMatMul::from_arc`.
    pub fn from_qtensors<W: Into<QWeights>>([gate, up, down]: [W; 3], function: GateFunction) -> Result<Self> {
        let gate_up = MergedLinear::new([QLinear::from_blocks(gate, None)?, QLinear::from_blocks(up, None)?])?;
        Self::new(gate_up, QLinear::from_blocks(down, None)?, function)
    }

    /// `forward(x) + residual`; the residual has the shape and the type of the result.
    ///
    /// # Errors
    /// Shapes, types and devices that do not fit, tensors that track gradients, and gates that this build has no kernel for.
    pub fn forward_residual(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.compute(x, Some(residual))
    }

    /// `forward(x)` into a tensor of the result's shape and type. The bits are those of `forward`.
    ///
    /// On a GPU it allocates nothing, and is legal in a capture after [`prepare`](crate::prepare).
    ///
    /// # Errors
    /// As for [`forward_residual`](Self::forward_residual); a workspace of another device or type, for other sizes or for fewer rows; a tensor that shares memory with x.
    pub fn forward_into(&self, x: &Tensor, workspace: &GatedMlpWorkspace, out: &Tensor) -> Result<()> {
        self.write(x, None, workspace, out)
    }

    /// [`forward_residual`](Self::forward_residual) into a tensor that exists, which may be the residual itself.
    ///
    /// # Errors
    /// As for [`forward_into`](Self::forward_into).
    pub fn forward_residual_into(
        &self,
        x: &Tensor,
        residual: &Tensor,
        workspace: &GatedMlpWorkspace,
        out: &Tensor,
    ) -> Result<()> {
        self.write(x, Some(residual), workspace, out)
    }

    /// Memory between the layer's kernels for up to so many rows of inputs in `dtype`.
    ///
    /// # Errors
    /// A device without room.
    pub fn workspace(&self, rows: usize, dtype: DType) -> Result<GatedMlpWorkspace> {
        let (both, device) = (self.gate_up.columns(), self.gate_up.device());
        Ok(GatedMlpWorkspace {
            both: unwritten(&[rows, both], dtype, &device)?,
            inner: unwritten(&[rows, both / 2], dtype, &device)?,
        })
    }

    fn compute(&self, x: &Tensor, residual: Option<&Tensor>) -> Result<Tensor> {
        let x = x.contiguous()?;
        let rows = x.dims().split_last().map_or(&[][..], |(_, rows)| rows);
        let out = unwritten(&[rows, &[self.down.columns()]].concat(), x.dtype(), x.device())?;
        let residual = residual.map(Tensor::contiguous).transpose()?;
        self.write(&x, residual.as_ref(), &self.workspace(rows.iter().product(), x.dtype())?, &out)?;
        Ok(out)
    }

    fn write(&self, x: &Tensor, residual: Option<&Tensor>, workspace: &GatedMlpWorkspace, out: &Tensor) -> Result<()> {
        BLOCK.among("x", x, &FLOATS)?;
        let (hidden, columns) = (self.gate_up.inputs()?, self.down.columns());
        let rows = BLOCK.rows("x", x, hidden)?.rows;
        BLOCK.same("the result", out, x)?;
        if let Some(residual) = residual {
            BLOCK.same("the residual", residual, x)?;
            BLOCK.apart_or_same("the residual", residual, out)?;
        }
        BLOCK.apart("x", x, out)?;
        let (most, both) = workspace.both.dims2()?;
        let is_of = both == self.gate_up.columns() && workspace.both.dtype() == x.dtype();
        if !is_of || most < rows || !workspace.both.device().same_device(x.device()) {
            bail!(
                "GatedMlp: the workspace is for {most} rows of {both} numbers in {:?} on {:?}; make one by `workspace({rows}, {:?})` of this layer",
                workspace.both.dtype(),
                workspace.both.device().location(),
                x.dtype()
            );
        }
        let [both, inner] = [&workspace.both, &workspace.inner].map(|tensor| tensor.narrow(0, 0, rows));
        let (both, inner) = (both?, inner?);
        let x = in_rows("x", x, rows, hidden)?;
        let out = in_rows("the result", out, rows, columns)?;
        let residual = residual.map(|residual| in_rows("the residual", residual, rows, columns)).transpose()?;
        #[cfg(feature = "cuda")]
        if let Some(down) = self.down_of_8_bits(rows, x.dtype())? {
            self.gate_up.forward_into(&x, &both)?;
            return down.gated_in_8_bits_into(&both, self.function, residual.as_ref(), &out);
        }
        self.gates(&x, &both, &inner)?;
        match residual {
            Some(residual) => self.down.forward_residual_into(&inner, &residual, &out),
            None => self.down.forward_into(&inner, &out),
        }
    }

    /// `down`, where one kernel gates for it and rounds to 8 bits.
    #[cfg(feature = "cuda")]
    fn down_of_8_bits(&self, rows: usize, dtype: DType) -> Result<Option<&QuantLinear>> {
        match self.down.as_narrow() {
            Some(down) if rows > 0 && self.gate == Gate::Halves && down.gates_in_8_bits(dtype)? => Ok(Some(down)),
            _ => Ok(None),
        }
    }

    /// The gated numbers of x, into `inner`.
    fn gates(&self, x: &Tensor, both: &Tensor, inner: &Tensor) -> Result<()> {
        if let Some(layer) = self.gate_up.as_linear().filter(|layer| layer.activation == Activation::Identity) {
            return layer.gated_into(x, (self.gate, self.function), both, inner);
        }
        self.gate_up.forward_into(x, both)?;
        gate_into(both, self.gate, self.function, inner)
    }
}

impl Module for GatedMlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.compute(x, None)
    }
}

/// The tensor as (rows, columns), without a copy.
fn in_rows(what: &str, tensor: &Tensor, rows: usize, columns: usize) -> Result<Tensor> {
    match tensor.rank() {
        2 if tensor.dims() == [rows, columns] => Ok(tensor.clone()),
        _ if tensor.elem_count() != rows * columns || tensor.dims().last() != Some(&columns) => {
            bail!("GatedMlp: {what} is {:?}; expected {rows} rows of {columns}", tensor.dims())
        }
        _ if tensor.is_contiguous() => tensor.reshape((rows, columns)),
        _ => bail!("GatedMlp: {what} is not contiguous, and has more than two dimensions; call `.contiguous()?` on it"),
    }
}

/// Memory between the kernels of a [`GatedMlp`], for calls one after another on one stream: layers of the same sizes share one. It has three times the inner numbers of
/// each row.
#[derive(Debug, Clone)]
pub struct GatedMlpWorkspace {
    /// (rows, 2 * inner)
    both: Tensor,
    /// (rows, inner)
    inner: Tensor,
}
