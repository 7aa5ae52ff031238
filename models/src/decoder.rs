//! The decoder.

use crate::body::{Body, CHUNK};
use crate::config::{Config, Rank};
use crate::split::Split;
use crate::weights::{cuts_experts, cuts_experts_of_file, Dense, Gguf, Head, Source};
use candle::quantized::gguf_file::Content;
use candle::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm::gguf::{GgufFile, Tensors};
use candle_tilegemm::nn::parallel::Group;
use std::io::{Read, Seek};
use std::sync::Arc;

/// A decoder: layers as its [`Config`] describes them, and the product to logits.
///
/// Products to q, k and v are one product, and those to gates and numbers, too; products after attention and after the gate add their input to the result.
/// The crate's documentation has an example.
#[derive(Debug, Clone)]
pub struct Decoder {
    pub(crate) body: Body,
    pub(crate) head: Head,
    pub(crate) chunk: usize,
    /// The same for clones, which share the weights.
    pub(crate) id: Arc<()>,
}

impl Decoder {
    /// A decoder with weights of Hugging Face's names, `model.layers.0.self_attn.q_proj.weight` and so on, in the type and on the device of `vb`.
    ///
    /// # Errors
    /// Missing weights, weights of other shapes than the config has, a config whose sizes do not go together, and on a GPU one that its kernels do not compute
    /// ([`Config::check_device`]).
    pub fn load(config: &Config, vb: VarBuilder) -> Result<Self> {
        Self::load_rank(config, &Group::one(), vb)
    }

    /// A rank's part of a decoder that a group computes: of heads, inner numbers or experts, and the vocabulary. `vb` gives parts of tensors, as that of
    /// [`Checkpoint::of_rank`](candle_tilegemm::nn::narrow::Checkpoint::of_rank) does. `split` is the rank's `&Group`, or a [`Split`] that says how experts are split.
    ///
    /// All ranks make the same calls in the same order, and choose the same tokens.
    ///
    /// Where a product's columns are split, activations in 8 bits have other factors than on one card, as each rank has those of its part of a row, and so have weights
    /// that are rounded by rows as they are loaded: results differ by that rounding.
    ///
    /// # Errors
    /// As for [`load`](Self::load); sizes that the ranks do not divide, with the numbers of ranks that do; stored weights in few bits whose groups, blocks or words a
    /// rank's part cuts in two, or whose columns are in act order.
    pub fn load_rank(config: &Config, split: impl Into<Split>, vb: VarBuilder) -> Result<Self> {
        Self::load_rank_with(config, split, vb, |_, _| ())
    }

    /// The same as [`load_rank`](Self::load_rank), for programs that show progress: calls `loaded` with the number of layers that are loaded and the number of all.
    /// The first call, with 0, comes after the embedding, and the others after a layer each; the head is loaded last.
    ///
    /// ```
    /// use candle::{DType, Device};
    /// use candle_nn::{VarBuilder, VarMap};
    /// use candle_tilegemm::nn::parallel::Group;
    /// use candle_tilegemm_models::{Config, Decoder};
    ///
    /// # let config = Config::from_json(
    /// #     r#"{"model_type": "llama", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    /// #         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}"#,
    /// # )?;
    /// let (weights, mut told) = (VarMap::new(), vec![]);
    /// let vb = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
    /// Decoder::load_rank_with(&config, &Group::one(), vb, |layers, of| told.push((layers, of)))?;
    /// assert_eq!(told, [(0, 2), (1, 2), (2, 2)]);
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`load_rank`](Self::load_rank).
    pub fn load_rank_with(
        config: &Config,
        split: impl Into<Split>,
        vb: VarBuilder,
        mut loaded: impl FnMut(usize, usize),
    ) -> Result<Self> {
        let rank = Rank::new(config, split.into(), |part| cuts_experts(config, part, &vb))?;
        let decoder = Self::from_source(&mut Dense::new(&rank, vb), &mut loaded);
        decoder.map_err(|error| match rank.group.size() {
            1 => error,
            size => error.context(format!("rank {} of {size}", rank.group.rank())),
        })
    }

    /// A decoder with the weights of a GGUF file, as they lie there; all else is in `dtype`: f16, bf16, or on the CPU f32.
    ///
    /// The embedding is not dequantised: rows are, as tokens ask for them. Tensors may be in every block format of `candle_tilegemm`.
    ///
    /// ```no_run
    /// use candle::{DType, Device};
    /// use candle_tilegemm::gguf::GgufFile;
    /// use candle_tilegemm_models::Decoder;
    ///
    /// let mut file = std::io::BufReader::new(std::fs::File::open("model.gguf")?);
    /// let content = GgufFile::read(&mut file)?;
    /// let decoder = Decoder::from_gguf_file(&content, &mut file, DType::F32, &Device::Cpu)?;
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Config::from_gguf`]; tensors that are missing, or have other shapes than the metadata say.
    pub fn from_gguf_file<R: Read + Seek>(
        file: &GgufFile,
        reader: &mut R,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        Self::from_gguf_rank(file, &Group::one(), reader, dtype, device)
    }

    /// A rank's part of a decoder that a group computes, with the weights of a GGUF file: it reads no other rank's. All else is as in
    /// [`load_rank`](Self::load_rank).
    ///
    /// # Errors
    /// As for [`from_gguf_file`](Self::from_gguf_file); sizes that the ranks do not divide, with the numbers of ranks that do; a part of a row of `token_embd`,
    /// `attn_output` or `ffn_down` that is not whole blocks, and of `ffn_down_exps` where the ranks do not divide the experts either.
    pub fn from_gguf_rank<R: Read + Seek>(
        file: &GgufFile,
        split: impl Into<Split>,
        reader: &mut R,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        Self::from_gguf_rank_with(file, split, reader, dtype, device, |_, _| ())
    }

    /// The same as [`from_gguf_rank`](Self::from_gguf_rank), and calls `loaded` as [`load_rank_with`](Self::load_rank_with) does.
    ///
    /// # Errors
    /// As for [`from_gguf_rank`](Self::from_gguf_rank).
    pub fn from_gguf_rank_with<R: Read + Seek>(
        file: &GgufFile,
        split: impl Into<Split>,
        reader: &mut R,
        dtype: DType,
        device: &Device,
        mut loaded: impl FnMut(usize, usize),
    ) -> Result<Self> {
        let (config, tensors) = (Config::from_gguf_file(file)?, &file.tensors);
        let rank = &Rank::new(&config, split.into(), |part| Ok(cuts_experts_of_file(&config, part, tensors)))?;
        Self::from_source(&mut Gguf::new(rank, tensors, reader, (dtype, device)), &mut loaded)
    }

    /// The same from what candle reads of a file, whose tensors are all in candle's formats; what is not in blocks is in bf16, and in f32 on the CPU.
    ///
    /// ```no_run
    /// use candle::{quantized::gguf_file::Content, Device};
    /// use candle_tilegemm_models::Decoder;
    ///
    /// let mut file = std::io::BufReader::new(std::fs::File::open("model.gguf")?);
    /// let content = Content::read(&mut file)?;
    /// let decoder = Decoder::from_gguf(&content, &mut file, &Device::Cpu)?;
    /// # Ok::<(), candle::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Config::from_gguf`]; tensors that are missing, or have other shapes than the metadata say.
    pub fn from_gguf<R: Read + Seek>(content: &Content, reader: &mut R, device: &Device) -> Result<Self> {
        let dtype = if device.is_cpu() { DType::F32 } else { DType::BF16 };
        Self::from_gguf_in(content, reader, dtype, device)
    }

    /// The same, with `dtype` for all that is not in blocks: f16, bf16, or on the CPU f32.
    ///
    /// # Errors
    /// As for [`from_gguf`](Self::from_gguf).
    pub fn from_gguf_in<R: Read + Seek>(
        content: &Content,
        reader: &mut R,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let (rank, tensors) = (&Rank::whole(&Config::from_gguf(content)?), &Tensors::from(content));
        Self::from_source(&mut Gguf::new(rank, tensors, reader, (dtype, device)), &mut |_, _| ())
    }

    fn from_source(source: &mut dyn Source, loaded: &mut dyn FnMut(usize, usize)) -> Result<Self> {
        let body = Body::load_with(source, loaded)?;
        let head = source.head(&body.table)?;
        Ok(Self { body, head, chunk: CHUNK, id: Arc::default() })
    }

    /// The same decoder, with at most so many tokens of a prompt in the layers at once; 2048 unless given. Fewer take less memory and more time.
    pub fn with_chunk(mut self, tokens: usize) -> Self {
        self.chunk = tokens.max(1);
        self
    }

    /// What the decoder is made of: on a rank of a group, its part of heads and inner numbers. Of experts that are split as a whole it has all.
    pub fn config(&self) -> &Config {
        &self.body.config
    }

    /// Where it is.
    pub fn device(&self) -> Device {
        self.body.device()
    }

    /// The type of what goes from layer to layer, and of a cache.
    pub fn dtype(&self) -> DType {
        self.body.dtype()
    }

    /// (rows, hidden) before the last norm to (rows, vocabulary) in f32.
    pub(crate) fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, _) = x.dims2()?;
        let out = self.out(rows)?;
        self.logits_into(x, &out)?;
        Ok(out.logits)
    }

    /// Memory for the logits of so many rows.
    pub(crate) fn out(&self, rows: usize) -> Result<Out> {
        let (config, device) = (self.config(), self.device());
        let ranks = self.body.group.size();
        // SAFETY: the norm and the product write every number before anything reads it.
        let tensor = |columns: usize, dtype| unsafe { Tensor::empty((rows, columns), dtype, &device) };
        let split = |columns: usize| if ranks > 1 { tensor(columns, DType::F32).map(Some) } else { Ok(None) };
        Ok(Out {
            normed: tensor(config.hidden, self.head.input(self.dtype()))?,
            part: split(config.vocabulary / ranks)?,
            between: split(config.vocabulary)?,
            logits: tensor(config.vocabulary, DType::F32)?,
        })
    }

    /// (rows, hidden) before the last norm to `out.logits`. Allocates nothing.
    pub(crate) fn logits_into(&self, x: &Tensor, out: &Out) -> Result<()> {
        self.body.norm().forward_into(x, &out.normed)?;
        let (Some(part), Some(between)) = (&out.part, &out.between) else {
            return self.head.forward_into(&out.normed, &out.logits);
        };
        self.head.forward_into(&out.normed, part)?;
        self.body.group.gather_columns_into(part, between, &out.logits)
    }
}

/// Memory of the last norm and of the product to logits.
#[derive(Debug)]
pub(crate) struct Out {
    /// (rows, hidden), in the type that the product takes.
    normed: Tensor,
    /// A rank's logits, (rows, vocabulary / ranks), and memory of the logits' size for the gathered ones.
    part: Option<Tensor>,
    between: Option<Tensor>,
    /// (rows, vocabulary) in f32.
    pub logits: Tensor,
}
